"""One kernel, one collective, and a prediction's own outputs, from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepsight
from stepsight.errors import InputError
from stepsight.platform.importing import described
from stepsight.prediction.kernel_times import time_table

GPT2 = "examples/gpt2.toml"


def test_a_kernel_by_its_sizes() -> None:
    found = stepsight.kernel_time("gemm", "H100-SXM", "bf16", m=4096, n=4096, k=4096)
    assert found.speed_of_light_us < found.low_us < found.time_us < found.high_us


def test_a_kernel_without_a_size_names_it() -> None:
    with pytest.raises(InputError, match=r"gemm.*needs k"):
        stepsight.kernel_time("gemm", "H100-SXM", "bf16", m=4096, n=4096)


def test_a_collective_of_fewer_ranks_moves_less() -> None:
    two, eight = (stepsight.collective_time("all_reduce", "8xH100-SXM", 2**28, n) for n in (2, 8))
    assert two.ranks == 2 and two.time_us < eight.time_us


def test_fields_are_set_as_on_the_command_line() -> None:
    plain = stepsight.predict(GPT2, "8xH100-SXM")
    larger = stepsight.predict(GPT2, "8xH100-SXM", set={"batch_per_rank": 32, "platform.host.speed": 2})
    assert larger.step_time_us > plain.step_time_us
    with pytest.raises(InputError, match="batch_per_rnak"):
        stepsight.predict(GPT2, "8xH100-SXM", set={"batch_per_rnak": 32})


def test_a_prediction_writes_its_page_and_its_timeline(tmp_path: Path) -> None:
    prediction = stepsight.predict(GPT2, "2xH100-SXM")
    prediction.save_timeline(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert "<html" in prediction.to_html()


@pytest.mark.parametrize("name", ["allreduce", "AllReduce", "all-reduce", "all_reduce_perf"])
def test_a_collective_is_known_as_nccl_writes_it(name: str) -> None:
    assert stepsight.collective_time(name, "8xH100-SXM", 2**20).collective == "all_reduce"


def test_an_unknown_collective_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'all_gather'"):
        stepsight.collective_time("all_gathr", "8xH100-SXM", 2**20)


def test_lookups_are_asked_with_their_tables() -> None:
    with pytest.raises(InputError, match="tables and their indices"):
        stepsight.kernel_time("embedding", "H100-SXM")


def test_a_shared_matrix_is_the_left_or_the_right_one() -> None:
    sizes = {"batch": 64, "m": 64, "n": 4096, "k": 4096}
    alone, shared = (
        stepsight.kernel_time("gemm", "H100-SXM", "bf16", **sizes, **more) for more in ({}, {"shared": 2})
    )
    assert shared.speed_of_light_us < alone.speed_of_light_us
    with pytest.raises(InputError, match="shared: is 7"):
        stepsight.kernel_time("gemm", "H100-SXM", "bf16", **sizes, shared=7)
    with pytest.raises(InputError, match="table: shared: is 7"):
        time_table(
            {name: [size] for name, size in {"gpu": "H100-SXM", "op": "gemm", **sizes, "shared": 7}.items()}
        )


def test_a_file_of_a_gpu_takes_the_place_of_a_name(tmp_path):
    sizes = {"m": 4096, "n": 4096, "k": 4096}
    mine = tmp_path / "mine.toml"
    mine.write_text(described("H100-SXM"))
    named, filed = (stepsight.kernel_time("gemm", gpu, "bf16", **sizes) for gpu in ("H100-SXM", str(mine)))
    assert filed.time_us == named.time_us


def test_a_sustained_time_states_its_clock():
    sizes = {"m": 8192, "n": 8192, "k": 8192}
    short, hours = (
        stepsight.kernel_time("gemm", "H100-PCIe", "bf16", **sizes, sustained=s) for s in (False, True)
    )
    assert short.clock is None
    assert hours.clock < 1.0


@pytest.mark.parametrize(
    ("ask", "given", "problem"),
    [
        (stepsight.collective_time, ("all_reduce", "2xT4", [1, 2]), "message_bytes: must be a number of"),
        (stepsight.collective_time, ("all_reduce", "2xT4", 1e6, [0, 1]), "ranks: must be a number of GPUs"),
        (stepsight.collective_time, ("all_reduce", "2xT4", 1e6, 0), "ranks: must be a number of GPUs"),
        (stepsight.collective_time, (5, "2xT4", 1e6), "collective 5: unknown"),
        (stepsight.predict, (5, "2xT4"), "workload: must be a name, a path, a dict"),
    ],
)
def test_an_argument_of_another_type_is_named(ask, given, problem):
    with pytest.raises(InputError, match=problem):
        ask(*given)
