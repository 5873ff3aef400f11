"""A topic of many lines is shown by kind, and every missed bar by name."""

from __future__ import annotations

from stepsight.score import Score
from stepsight.validate.results import TopicResult
from stepsight.validate.scorecard import MOST_LINES, scorecard


def test_many_lines_are_shown_by_kind_and_missed_bars_by_name() -> None:
    lines = [
        Score("kernels", f"fp16 linear forward G{i}", 10, 0.01 * (i % 5 + 1), 0.02, "", "GMAE ≤ 4%", i != 3)
        for i in range(MOST_LINES + 1)
    ]
    page = scorecard([TopicResult("kernels", "stepsight validate kernels", 1.0, tuple(lines))])
    assert f"| fp16 linear | {MOST_LINES + 1} | {10 * (MOST_LINES + 1)} | 1.0 % to 5.0 % (3.0 %) |" in page
    assert page.count("G3: 4.0 %") == 1
    assert "G5" not in page
