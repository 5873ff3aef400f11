"""When intervals hold what they say."""

from __future__ import annotations

from lab.score.frame import interval_score
from stepsight.score import BLIND


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
