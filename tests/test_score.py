"""What a line of the scoreboard reads."""

from __future__ import annotations

import pytest

from stepsight.score import BLIND, Figure, Score


def test_a_line_without_errors_reads_its_figure() -> None:
    line = Score.reading("t", "a", 3, Figure("mean regret", 0.07), "groups", exposure=BLIND)
    assert (line.gmae, line.mape, line.errors) == (None, None, "mean regret 7.0%")
    assert str(Figure("correlation", 0.9876, "more", is_share=False)) == "correlation 0.988"


def test_how_blind_rows_are_must_be_stated() -> None:
    with pytest.raises(TypeError, match="exposure"):
        Score("t", "a", 1, 0.1, 0.1, "all")  # type: ignore[call-arg]
