"""How runs of traces are scored."""

from __future__ import annotations

from lab.score.traces.topic import DLRM, RunRow, board
from stepsight.prediction.breakdown import TimedBy
from stepsight.score import CHOSEN, FIT


def run(measured_ms: float, low_ms: float, high_ms: float) -> RunRow:
    return RunRow("r", DLRM, "host", measured_ms, 100.0, 100.0, 100.0, 100.0, low_ms, high_ms, TimedBy())


def test_runs_that_took_part_in_the_fit_are_named_so() -> None:
    exposure = {line.name: line.exposure for line in board([run(100.0, 90.0, 110.0)])}
    assert exposure["dlrm, models only, own source left out"] == CHOSEN
    assert exposure["dlrm, models only, as shipped"] == FIT
    assert exposure["anchored on its own GPU"] == FIT


def test_intervals_that_hold_every_run_are_not_called_right() -> None:
    def intervals(rows: list[RunRow]) -> bool | None:
        return next(line.met for line in board(rows) if line.name == "runs inside their 90 % interval")

    assert intervals([run(100.0, 90.0, 110.0)] * 27) is None
    assert intervals([run(100.0, 90.0, 110.0)] * 90) is False
    assert intervals([run(100.0, 90.0, 110.0)] * 9 + [run(100.0, 101.0, 110.0)]) is True
    assert intervals([run(100.0, 101.0, 110.0)] * 9) is False
