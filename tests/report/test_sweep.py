"""The table of a sweep names the framework of each row where rows differ in it."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console

from stepsight.report.search import show_rows
from stepsight.tuning.trial import Row, Setting


def shown(dimension: str, values: Sequence[Setting], frameworks: Sequence[str]) -> str:
    rows = [
        Row({dimension: value}, "8xH100-SXM", step_time_us=1e6, tokens_per_s=1e4, framework=framework)
        for value, framework in zip(values, frameworks, strict=True)
    ]
    text = io.StringIO()
    show_rows(rows, Console(file=text, width=120))
    return text.getvalue()


def test_one_framework_stands_below_the_table() -> None:
    assert (
        shown("parallel.tensor", (1, 2), ("megatron", "megatron")).splitlines()[-1] == "framework: megatron"
    )


def test_rows_that_differ_in_the_framework_say_so() -> None:
    lines = shown("parallel.tensor", (1, 2), ("torchtitan", "megatron")).splitlines()
    assert (
        lines[0].endswith("framework") and lines[1].endswith("torchtitan") and lines[2].endswith("megatron")
    )
    assert lines[3].startswith("rows differ in the framework too")


def test_a_sweep_over_frameworks_shows_each_once() -> None:
    text = shown("training.framework", ("torchtitan", "megatron"), ("torchtitan", "megatron"))
    assert "differ" not in text and text.splitlines()[0].count("framework") == 1
