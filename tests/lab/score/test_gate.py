"""The gate compares what must not rise: errors, figures, and what is missing from a share."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.score import gate
from lab.score.frame import interval_score
from lab.score.results import TopicResult, save_result
from stepsight.score import Figure, Score


def test_lines_without_errors_are_compared_by_their_figure(tmp_path: Path) -> None:
    lines = (
        Score("t", "errors", 3, 0.05, 0.06, "", exposure="blind"),
        Score.reading("t", "regret", 3, Figure("mean regret", 0.07), "", exposure="blind"),
        Score.reading("t", "share", 3, Figure("right", 0.93, "more"), "", exposure="blind"),
        interval_score("t", "intervals", 27, 27, "", exposure="blind"),
        Score("t", "left out", 3, None, None, "", exposure="blind"),
    )
    save_result(tmp_path, TopicResult("t", "c", 1.0, lines))
    found = {name: score["gmae"] for name, score in gate.scores(tmp_path).items()}
    assert found == pytest.approx({"t: errors": 0.05, "t: regret": 0.07, "t: share": 0.07})
