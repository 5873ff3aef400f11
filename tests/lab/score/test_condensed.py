"""Lines of one kind stand together where a topic has many; other lines and missed bars by name."""

from __future__ import annotations

from lab.score.results import TopicResult
from lab.score.scorecard import MOST_LINES, scorecard
from stepsight.score import Figure, Score


def linear(i: int) -> Score:
    return Score(
        "kernels", f"fp16 linear forward G{i}", 10, 0.01 * (i % 5 + 1), 0.02, "", "GMAE ≤ 4%", i != 3,
        exposure="chosen", kind="fp16 linear",
    )  # fmt: skip


def page(*lines: Score) -> str:
    return scorecard([TopicResult("kernels", "python -m lab score kernels", 1.0, lines)])


def test_many_lines_are_shown_by_kind_and_missed_bars_by_name() -> None:
    shown = page(*(linear(i) for i in range(MOST_LINES + 1)))
    assert f"| fp16 linear | {MOST_LINES + 1} | {10 * (MOST_LINES + 1)} | 1.0 % to 5.0 % (3.0 %) |" in shown
    assert "- fp16 linear forward G3: 4.0 % / 2.0 % (10 rows; bar GMAE ≤ 4 %)" in shown
    assert "G5" not in shown


def test_a_line_that_is_alone_keeps_its_whole_name_bar_and_exposure() -> None:
    alone = Score(
        "kernels", "gemm bf16 A100-SXM4-80G, all stacks", 7, 0.02, 0.03, "left out", "GMAE ≤ 3.0%", True,
        exposure="chosen",
    )  # fmt: skip
    shown = page(alone, *(linear(i) for i in range(MOST_LINES)))
    assert (
        "| gemm bf16 A100-SXM4-80G, all stacks (left out) | 7 | 2.0 % | 3.0 % | GMAE ≤ 3.0 %: met |  | "
        "seen while tuning |"
    ) in shown


def test_figures_of_a_kind_are_named() -> None:
    lines = [
        Score.reading(
            "kernels", f"time with a model, G{i}", 1, Figure("without a model", 0.01 * i), "", exposure="fit",
            kind="time with a model",
        )
        for i in range(3)
    ]  # fmt: skip
    shown = page(*lines, *(linear(i) for i in range(MOST_LINES)))
    assert "| time with a model | 3 | 3 | without a model 0.0 % to 2.0 % (1.0 %) |  | fitted |" in shown
