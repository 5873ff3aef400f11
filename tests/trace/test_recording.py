"""Gaps that the profiler made for itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepsight.trace.step.host_times import recording_gaps
from stepsight.trace.step.job import rank_program
from stepsight.trace.step.run import load_trace

TENSOR = {"Input Dims": [[64, 64], []], "Input type": ["c10::BFloat16", "Scalar"]}
NUMBERS = {"Input Dims": [[], []], "Input type": ["Scalar", "Scalar"]}
UNRECORDED: dict[str, list[object]] = {}


def launch(index: int, at_us: float, name: str, **args: object) -> list[dict[str, object]]:
    """A Triton launch: its operator, the call inside and the kernel."""
    op = {"External id": index, "kernel_backend": "triton", **args}
    call = {"External id": index, "correlation": index}
    kernel = {**call, "stream": 7, "device": 0, "grid": [1, 1, 1], "block": [32, 1, 1]}
    common = {"ph": "X", "pid": 1}
    return [
        {**common, "cat": "cpu_op", "name": name, "tid": 1, "ts": at_us, "dur": 20, "args": op},
        {**common, "cat": "cuda_driver", "name": "cuLaunchKernel", "tid": 1, "ts": at_us + 5, "dur": 6,
         "args": call},
        {**common, "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at_us + 12, "dur": 10,
         "args": kernel},
    ]  # fmt: skip


@pytest.fixture
def gaps(tmp_path: Path):
    def made(first: dict[str, list[object]], second: dict[str, list[object]]) -> dict[str, float]:
        step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0,
                "dur": 4000, "args": {}}  # fmt: skip
        events = [step, *launch(1, 100.0, "triton_mul", **first), *launch(2, 2500.0, "gemm", **second)]
        device = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
        (tmp_path / "t.json").write_text(json.dumps({"deviceProperties": device, "traceEvents": events}))
        run = load_trace(tmp_path)
        rank = run.ranks[0]
        return {p.name: us for p, us in recording_gaps(rank.linked, rank_program(run, rank, 0)).items()}

    return made


def test_a_kernel_of_nothing_but_numbers_took_its_tensors_in_objects(gaps):
    found = gaps(TENSOR, NUMBERS)
    assert list(found) == ["gemm"]
    assert found["gemm"] == pytest.approx(2380.0)


def test_a_gap_before_a_kernel_whose_tensors_are_recorded_is_the_programs(gaps):
    assert gaps(TENSOR, TENSOR) == {}


def test_without_recorded_shapes_nothing_can_be_told(gaps):
    assert gaps(UNRECORDED, UNRECORDED) == {}
