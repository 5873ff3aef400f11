"""Pages of other commands: one frame, whole documents, nothing fetched, the command at their foot."""

from __future__ import annotations

import click

from stepsight.prediction.answer import Prediction
from stepsight.prediction.compare import compare
from stepsight.report.charts import Axis, Line, Point, lines, points, waterfall
from stepsight.report.pieces import Fragment
from stepsight.report.prediction import page
from stepsight.report.runs import comparison_page
from stepsight.terminal import COMMAND_LINE

from .predictions import uneven
from .test_html import _Balance

EVIL = "</script><b>x</b>"


def words(content: str) -> str:
    parser = _Balance()
    parser.feed(content)
    assert parser.open == []
    return " ".join(" ".join(parser.text).split())


def test_a_page_says_which_command_made_it_with_which_version_and_when(dlrm: Prediction) -> None:
    with click.Context(click.Command("predict")) as context:
        context.meta[COMMAND_LINE] = "stepsight predict x.toml"
        foot = words(page(dlrm)).rpartition("Made with stepsight")[2]
    assert "stepsight predict x.toml" in foot
    assert " on 20" in foot


def test_a_comparison_shows_where_the_difference_went(waiting: Prediction) -> None:
    faster = uneven([1024] * 4)
    shown = words(comparison_page(compare(waiting, faster)))
    assert "shorter than A" in shown
    assert "Where the difference went" in shown
    assert "GEMM" in shown


def test_equal_steps_are_the_same_not_one_times_faster(waiting: Prediction) -> None:
    assert "A and B take the same time." in words(comparison_page(compare(waiting, waiting)))


def test_charts_are_drawn_for_any_numbers() -> None:
    axis = Axis("x")
    flat = Line(EVIL, (Point(1, 0.0), Point(2, 0.0, 0.0, 1e-9)))
    assert EVIL not in lines([flat, flat], axis, axis, name=EVIL)
    assert "<circle" in points([flat], [], axis, axis, name="front")
    assert lines([], axis, axis, name="none") == ""


def test_a_waterfall_goes_from_one_total_to_the_other() -> None:
    falls = [Fragment("GEMM", -3.0, "−3", "gemm"), Fragment("idle", 1.0, "+1", "idle")]
    shown = words(str(waterfall(Fragment("A", 10.0, "10", ""), falls, Fragment("B", 8.0, "8", ""))))
    assert shown.endswith("A 10 GEMM −3 idle +1 B 8")
