"""How runs of traces are scored."""

from __future__ import annotations

from lab.score.traces.rows import RunRow
from lab.score.traces.topic import DLRM, TRANSFORMER, Row, _shared, board
from stepsight.prediction.provenance import TimedBy
from stepsight.score import CHOSEN, FIT


def row(name: str, individual: float, shared: float, recording: float = 0.0) -> Row:
    made = Row(name, TRANSFORMER, 100.0, 100.0, individual, 50.0, recording=recording)
    made.shared, made.paced, made.blind = shared, shared, shared
    return made


def test_a_run_that_is_the_profilers_is_named_and_scored_apart() -> None:
    plain, slowed = row("plain", 99.0, 98.0), row("slowed", 99.0, 40.0, recording=60.0)
    without, included, *_ = _shared(TRANSFORMER, [plain, slowed])
    assert (without.rows, without.met) == (1, True)
    assert (included.rows, included.met) == (2, None)
    assert "slowed: 0 ms a step" in included.rows_used


def test_a_little_recording_leaves_a_run_where_it_is() -> None:
    first, *others = _shared(TRANSFORMER, [row("a", 99.0, 98.0), row("b", 99.0, 60.0, recording=5.0)])
    assert (first.rows, first.met) == (2, False)
    assert not any("slowed" in line.name for line in others)


def test_without_siblings_there_is_no_shared_line() -> None:
    assert [s.name for s in _shared(TRANSFORMER, [row("a", 99.0, float("nan"))])] == [
        "transformer, other hosts at its pace",
        "transformer, other hosts",
    ]


def run(measured_ms: float, low_ms: float, high_ms: float) -> RunRow:
    return RunRow(
        "r", DLRM, "host", measured_ms, 100.0, 100.0, 100.0, 100.0, 100.0, low_ms, high_ms, TimedBy()
    )


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
