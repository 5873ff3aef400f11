"""What a line of the scoreboard reads, and when intervals hold what they say."""

from __future__ import annotations

import pytest

from stepsight.score import BLIND, Figure, Score, interval_score


def verdict(inside: int, rows: int) -> bool | None:
    return interval_score("t", "intervals", inside, rows, "", exposure=BLIND).met


def test_intervals_that_hold_about_nine_in_ten_meet_their_bar() -> None:
    assert verdict(25, 27) is True
    assert verdict(85, 100) is True
    assert verdict(95, 100) is True


def test_intervals_can_be_too_narrow_and_too_wide() -> None:
    assert verdict(70, 100) is False
    assert verdict(15, 27) is False
    assert verdict(100, 100) is False
    assert verdict(59, 59) is False


def test_few_rows_outside_the_range_decide_nothing() -> None:
    assert verdict(27, 27) is None
    assert verdict(22, 27) is None
    line = interval_score("t", "intervals", 27, 27, "", exposure=BLIND)
    assert line.verdict == "open"
    assert "27 of 27 inside; by chance in 25% of cases" in line.note


def test_a_line_without_errors_reads_its_figure() -> None:
    line = Score.reading("t", "a", 3, Figure("mean regret", 0.07), "groups", exposure=BLIND)
    assert (line.gmae, line.mape, line.errors) == (None, None, "mean regret 7.0%")
    assert str(Figure("correlation", 0.9876, "more", is_share=False)) == "correlation 0.988"


def test_how_blind_rows_are_must_be_stated() -> None:
    with pytest.raises(TypeError, match="exposure"):
        Score("t", "a", 1, 0.1, 0.1, "all")  # type: ignore[call-arg]
