"""A calibration from end to end, as short as one can be, and what may go wrong with it."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from stepsight.calibrate.journal import FILE, Journal
from stepsight.calibrate.session import HOST, KERNELS, LOOKUPS, Calibration
from stepsight.commands.calibrate import command
from stepsight.errors import InputError, StepsightError
from stepsight.overheads.gather import HostSample
from stepsight.program.job import HostTimes
from stepsight.run.ranks import Ranks
from stepsight.run.worker import Rank
from stepsight.workload.files import Workload


class _StopHereError(Exception):
    pass


def test_an_interrupted_calibration_resumes_without_measuring_again(tmp_path: Path) -> None:
    def stop_after_kernels(stage: str, done: int, of: int) -> None:
        if stage == KERNELS and done == 1:
            raise _StopHereError

    with Ranks(1) as ranks:
        with pytest.raises(_StopHereError):
            Calibration(ranks, Journal(tmp_path, resume=False), 30.0, stop_after_kernels).run()
        first = Journal(tmp_path, resume=True).of(KERNELS)
        assert first

        def stop_at_lookups(stage: str, done: int, of: int) -> None:
            if stage == LOOKUPS:
                raise _StopHereError

        with pytest.raises(_StopHereError):
            Calibration(ranks, Journal(tmp_path, resume=True), 30.0, stop_at_lookups).run()
    lines = (tmp_path / FILE).read_text().splitlines()
    assert len(lines) == len(set(lines))
    assert len(Journal(tmp_path, resume=True).of(KERNELS)) > len(first)


def test_a_profiler_that_brings_a_rank_down_costs_one_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def profiled(ranks: Ranks, workload: Workload) -> list[HostSample]:
        calls.append(workload.name)
        if len(calls) == 1:
            raise StepsightError("rank 0 was killed by SIGSEGV")
        return [HostSample("aten::linear", "", 1, HostTimes(4.0, 6.0, 5.0, 0.0, 0.0))]

    monkeypatch.setattr("stepsight.calibrate.fit.profiled_samples", profiled)
    with Ranks(1) as ranks:
        before = ranks.pids
        session = Calibration(ranks, Journal(tmp_path, resume=False), 30.0, lambda *_: None)
        session._host(deadline=time.monotonic() + 60)
        assert ranks.pids != before
    assert len(calls) > 2
    assert [r["op"] for r in session.journal.of(HOST) if "op" in r] == ["aten::linear"]


def test_no_such_device_is_refused_before_anything_starts(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--device", "tpu", "--out", str(tmp_path / "p")])
    assert isinstance(result.exception, InputError)
    assert "no such device" in str(result.exception)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(command, ["--port", port, "--out", str(tmp_path / "p")])
    assert isinstance(result.exception, InputError)
    assert port in str(result.exception)


def test_a_folder_with_an_earlier_calibration_asks_for_resume(tmp_path: Path) -> None:
    Journal(tmp_path, resume=False).add(KERNELS, [{"name": "relu"}])
    result = CliRunner().invoke(command, ["--out", str(tmp_path)])
    assert "--resume" in str(result.exception)


def test_a_rank_that_dies_is_named_and_ends_the_others(tmp_path: Path) -> None:
    with Ranks(2) as ranks, pytest.raises(StepsightError, match="rank 1"):
        ranks.call(_die, timeout_s=60.0)


def _die(rank: Rank) -> None:
    import os
    import time

    if rank.rank == 1:
        os._exit(9)
    time.sleep(30)
