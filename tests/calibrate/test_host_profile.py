"""Host overheads from profiled steps, where the host executes the kernels itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepsight.calibrate.draws import rehearsal_documents
from stepsight.calibrate.fit import fit_overheads, gathered_overheads, host_samples, library_calls
from stepsight.calibrate.journal import overhead_records
from stepsight.overheads.gather import HostSample
from stepsight.program.job import HostTimes
from stepsight.workload.files import Workload, parse_workload


@pytest.fixture(scope="module")
def workload() -> Workload:
    document = rehearsal_documents(2, 1, 0)[0]
    return parse_workload(document, document["name"])


def _trace(path: Path, *ops: tuple[str, float, float], annotations: tuple[str, ...] = ()) -> Path:
    events: list[dict[str, Any]] = [
        {
            "ph": "X", "name": name, "ts": start, "dur": end - start, "pid": 1, "tid": 1,
            "cat": "user_annotation" if name in annotations else "cpu_op",
        }
        for name, start, end in ops
    ]  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_library_calls_stand_where_launches_stand(tmp_path: Path, workload: Workload) -> None:
    file = _trace(
        tmp_path / "rank0.json",
        ("aten::relu", 0, 10),
        ("aten::linear", 14, 40), ("aten::t", 15, 16), ("aten::addmm", 18, 37), ("aten::expand", 19, 20),
    )  # fmt: skip
    relu, linear = host_samples([file], workload, "cpu")
    assert relu.times == HostTimes(0.0, 0.0, 0.0, 0.0, 0.0)  # all of it is the kernel
    assert linear == HostSample("aten::linear", "aten::relu", 1, HostTimes(4.0, 4.0, 3.0, 0.0, 0.0), 2)


def test_an_optimizer_is_one_operator_with_gaps_between_its_calls(tmp_path: Path, workload: Workload) -> None:
    name = "Optimizer.step#SGD.step"
    calls = [("aten::add_", 10.0, 15.0), ("aten::add_", 18.0, 20.0), ("aten::add_", 25.0, 27.0)]
    file = _trace(tmp_path / "rank0.json", (name, 6, 30), *calls, annotations=(name,))
    (step,) = host_samples([file], workload, "cpu")
    assert step.launches == 3
    assert step.times == HostTimes(0.0, 4.0, 3.0, 0.0, 4.0)


def test_an_operator_without_calls_takes_its_whole_time(tmp_path: Path, workload: Workload) -> None:
    (view,) = host_samples([_trace(tmp_path / "r.json", ("aten::as_strided", 0, 3))], workload, "cpu")
    assert (view.launches, view.times.t5) == (0, 3.0)


def test_waiting_for_others_is_no_overhead(tmp_path: Path, workload: Workload) -> None:
    file = _trace(
        tmp_path / "rank0.json",
        ("All2All_Pooled_Wait", 0, 900),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 901, 990),
        ("c10d::allreduce_", 905, 980),
    )
    assert host_samples([file], workload, "cpu") == []


def test_a_stall_between_operators_is_dropped(tmp_path: Path, workload: Workload) -> None:
    file = _trace(tmp_path / "rank0.json", ("aten::relu", 0, 10), ("aten::sigmoid", 9000, 9010))
    assert [s.name for s in host_samples([file], workload, "cpu")] == ["aten::relu"]


def test_the_journal_keeps_what_was_gathered(workload: Workload) -> None:
    times = HostTimes(4.0, 6.0, 5.0, 0.0, 0.0)
    gathered = gathered_overheads([HostSample("aten::linear", "", 1, times)] * 5)
    again = fit_overheads(json.loads(json.dumps(overhead_records(gathered))), "cpu")
    assert again.ops == gathered.ops
    assert again.of("aten::linear", 1).t2 < 6.0  # what recording cost is taken out
    assert again.of("c10d::allreduce_", 1) == fit_overheads((), "cpu").of("c10d::allreduce_", 1)


def test_the_calls_of_a_dlrm_are_those_below_autograd(workload: Workload) -> None:
    calls = library_calls(workload)
    assert {"aten::addmm", "aten::scatter_add_"} <= calls
    assert "aten::linear" not in calls
