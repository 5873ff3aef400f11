"""An answer is described once: the terminal and the page show the same cells and sentences."""

from __future__ import annotations

import io

from rich.console import Console

from stepsight.prediction.display import Look
from stepsight.report.pieces import Bar, Fragment, Listing, Report

from .test_pages import words

HALVES = Bar((Fragment("compute", 1.0, "1 s", "gemm"), Fragment("idle", 1.0, "1 s", "idle")), 4.0, width=8)
LISTED = Listing(
    "ranks", ("rank", "step", "parts"), [("0", "2.0 s", HALVES), (Look("1 <b>", "gemm"), "3.0 s", HALVES)],
    ("parts",), "How to read it.", ["… 3 more"],
)  # fmt: skip
REPORT = Report("8 runs", ["They agree."], [LISTED, Listing("empty", ("a",), [])])


def printed(report: Report) -> str:
    console = Console(file=io.StringIO(), width=200, markup=False)
    report.show(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_terminal_and_page_show_the_same_cells_and_sentences() -> None:
    terminal, page = printed(REPORT), words(REPORT.page())
    for text in ("8 runs", "They agree.", "2.0 s", "1 <b>", "3.0 s", "… 3 more"):
        assert text in terminal and text in page
    assert "ranks" in terminal and "Ranks" in page and "How to read it." in page


def test_tables_without_rows_are_left_out() -> None:
    assert "empty" not in printed(REPORT)
    assert "Empty" not in REPORT.page()


def test_bars_are_blocks_in_proportion_and_never_nothing() -> None:
    assert HALVES.blocks().plain == "█" * 4
    assert Bar((Fragment("a", 0.001, "", "gemm"),), 1.0).blocks().plain == "▏"


def test_the_page_says_what_the_colours_of_its_bars_mean() -> None:
    assert words(LISTED.html()).endswith("compute idle")
