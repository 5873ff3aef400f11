"""Real ranks over gloo: the calls they make, the times they report, and how they fail."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from click.testing import CliRunner

from stepsight.commands.calibrate import run as command
from stepsight.errors import InputError, StepsightError
from stepsight.run.measure import Measurement, measure_all
from stepsight.run.ranks import Ranks
from stepsight.run.worker import Rank
from stepsight.workload.files import load_workload
from tests.run.recorded import program_calls, record_step

EXAMPLES = Path(__file__).parents[2] / "examples"
DLRM = ["parallel.ranks=2", "batch=64", "tables.rows=1000", "dense.features=13"]
SMALL = [
    "layers=2", "hidden=64", "heads=4", "ffn=96", "vocab=101", "sequence=14", "batch_per_rank=3",
    "parallel.data=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize(
    ("example", "change"),
    [
        ("dlrm", DLRM),
        ("dlrm", [*DLRM, "tables.dim=32", "parallel.bucket_mb=1"]),
        ("dlrm", [*DLRM, "parallel.sharding=[0,0,0,0,0,0,0,0]", "dense.interaction=cat"]),
        ("dlrm", [*DLRM, "parallel.sharding=[0,1,1,1,1,1,1,1]"]),
        ("bert", SMALL),
        ("gpt2", [*SMALL, "hidden=512", "vocab=3000"]),
    ],
    ids=[
        "dlrm",
        "dlrm projected, 1 MB buckets",
        "dlrm, a rank without tables",
        "dlrm uneven",
        "bert",
        "gpt2",
    ],
)
def test_every_rank_makes_the_calls_its_program_lists(pair: Ranks, example: str, change: list[str]) -> None:
    workload = load_workload(EXAMPLES / f"{example}.toml", change)
    job = workload.job(device="cpu")
    for rank, calls in enumerate(pair.call(record_step, workload)):
        assert calls == program_calls(job.programs[job.program_of_rank[rank]].ops)


def test_workloads_are_measured_in_interleaved_blocks(pair: Ranks) -> None:
    workloads = [load_workload(EXAMPLES / "dlrm.toml", DLRM), load_workload(EXAMPLES / "bert.toml", SMALL)]
    dlrm, bert = measure_all(pair, workloads, steps=2, blocks=3, warmup=2)
    assert dlrm.marks_us.shape == bert.marks_us.shape == (2, 3, 3)
    assert dlrm.job_us.shape == (3, 2)
    assert (dlrm.name, bert.name) == ("dlrm", "bert")
    assert dlrm.low_us <= dlrm.step_us <= dlrm.high_us
    assert dlrm.as_dict()["ranks"] == 2


def test_restarted_ranks_are_new_processes_that_answer() -> None:
    with Ranks(2) as ranks:
        before = set(ranks.pids)
        ranks.restart()
        assert before.isdisjoint(ranks.pids)
        assert ranks.call(_number) == [0, 1]


def _number(rank: Rank) -> int:
    return rank.rank


def test_a_workload_of_another_size_is_refused(pair: Ranks) -> None:
    workload = load_workload(EXAMPLES / "dlrm.toml", [*DLRM, "parallel.ranks=4"])
    with pytest.raises(InputError, match="4 ranks, the group has 2"):
        measure_all(pair, [workload])


def _die_on_rank_1(rank: Rank) -> None:
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _fail_on_rank_1(rank: Rank) -> None:
    if rank.rank == 1:
        raise ValueError("a table is missing")
    time.sleep(60)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (_die_on_rank_1, "rank 1 was killed by SIGKILL"),
        (_fail_on_rank_1, "rank 1 failed: ValueError: a table"),
    ],
)
def test_a_rank_that_fails_is_named_and_the_others_end(
    task: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # the ranks import this module's tasks
    with Ranks(2) as ranks:
        pids = ranks.pids
        with pytest.raises(StepsightError, match=said):
            ranks.call(task)  # type: ignore[arg-type]
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        with pytest.raises(StepsightError, match="the ranks have ended"):  # not an hour of waiting for nobody
            ranks.call(task)  # type: ignore[arg-type]


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {port}"):
            Ranks(2, port=port)


def test_a_missing_device_is_named() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match="no CUDA device"):
        Ranks(1, "cuda")
    with pytest.raises(InputError, match="no such device"):
        Ranks(1, "tpu")


def test_the_command_reports_json_and_writes_a_profile(tmp_path: Path) -> None:
    overrides = [f"--set={change}" for change in DLRM[1:]]
    result = CliRunner().invoke(
        command,
        [str(EXAMPLES / "dlrm.toml"), "--ranks", "2", "--steps", "1", "--blocks", "2", *overrides,
         "--profile", str(tmp_path), "--json"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert '"measured_us"' in result.output
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["rank0.pt.trace.json", "rank0_et.json", "rank1.pt.trace.json", "rank1_et.json"]


def test_a_step_lasts_from_one_end_of_the_whole_job_to_the_next() -> None:
    """Rank 1 is late in the first step and early in the second: the job loses that time once, not twice."""
    marks = np.array([[[0.0, 100.0, 200.0, 300.0]], [[0.0, 130.0, 210.0, 300.0]]])
    measured = Measurement("uneven", "cpu", marks)
    assert measured.job_us.tolist() == [[130.0, 80.0, 90.0]]
    assert measured.job_us.sum() == 300.0
    assert measured.rank_us.tolist() == [100.0, 90.0]
