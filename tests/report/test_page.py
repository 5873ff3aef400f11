"""The pieces of a page: text is escaped, bars and tables say what they show."""

from __future__ import annotations

import math
import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsight.report.pieces import (
    Fragment,
    Html,
    asset,
    bar,
    figures,
    frame,
    notes,
    section,
    table,
    tag,
    text,
    whole,
)


def test_text_is_escaped_and_html_is_not() -> None:
    assert text('<b> & "c"') == "&lt;b&gt; &amp; &quot;c&quot;"
    assert text(Html("<b>x</b>")) == "<b>x</b>"


@given(st.text(), st.text())
def test_no_text_can_open_an_element(word: str, title: str) -> None:
    drawn = section(title, table([word], [[word]]), bar([Fragment(word, 1.0, word, "gemm")]), notes([word]))
    outside = re.sub(r"</?(section|h2|div|table|thead|tbody|tr|th|td|ul|li|i|b|span)\b[^<>]*>", "", drawn)
    assert "<" not in outside
    assert ">" not in outside


def test_a_bar_fills_its_width_in_proportion() -> None:
    drawn = bar([Fragment("a", 1.0, "1", "gemm"), Fragment("b", 3.0, "3", "copy")])
    assert re.findall(r"flex:([\d.]+)", drawn) == ["0.25000", "0.75000"]


def test_a_bar_against_a_total_leaves_the_rest_empty() -> None:
    drawn = bar([Fragment("held", 1.0, "1 GB", "gemm")], total=4.0)
    assert 'class="room" style="flex:0.75000' in drawn


def test_a_bar_is_read_out_with_its_values() -> None:
    drawn = bar([Fragment("a", 1.0, "1 ms", "gemm"), Fragment("none", 0.0, "0 ms", "copy")], name="step")
    assert 'aria-label="step: a 1 ms"' in drawn
    assert "none" not in drawn


def test_a_bar_of_nothing_is_still_a_bar() -> None:
    assert bar([Fragment("a", 0.0, "0", "gemm")]).startswith("<div")


def test_a_table_has_headers_for_its_columns() -> None:
    drawn = table(("name", "time", "where"), [("x", "1 ms", "here")], left=("where",))
    assert '<th scope="col">name</th>' in drawn
    assert '<td class="num">1 ms</td><td>here</td>' in drawn


def test_a_column_without_a_word_is_left_out() -> None:
    drawn = table(("name", "period", "time"), [("x", "", "1 ms"), ("y", "", "2 ms")])
    assert "period" not in drawn
    assert "2 ms" in drawn


def test_sentences_at_the_end_of_rows_can_go_below_them() -> None:
    row = ("search", "5 ms", "+0 %", "2 GB", "all_to_all: rank 4 is 54 % over the mean")
    drawn = table(("plan", "step", "slower", "memory", "why"), [row], left=("why",))
    assert '<div class="scroll below" style="--figures:4">' in drawn
    assert '<td class="prose">all_to_all' in drawn


def test_no_flag_is_broken() -> None:
    assert whole("a --set x=1") == 'a <span class="whole">--set</span> x=1'


def test_long_lists_of_notes_are_folded() -> None:
    drawn = notes([f"note {n}" for n in range(20)], shown=5)
    assert "<summary>15 more</summary>" in drawn
    assert "note 19" in drawn


def test_figures_pair_titles_with_values() -> None:
    assert "<dt>imbalance</dt><dd>3 %<small>why</small></dd>" in figures([("imbalance", "3 %", "why")])


def test_the_frame_fetches_nothing() -> None:
    whole = frame("a <title>", tag("h1", "top"), [section("s", "body")])
    assert whole.startswith("<!DOCTYPE html>")
    assert "<title>a &lt;title&gt;</title>" in whole
    assert "default-src 'none'" in whole
    assert not re.search(r"(src|href)=\"(?!data:)", whole)
    assert "url(" not in whole
    assert "prefers-color-scheme: dark" in whole


def _luminance(colour: str) -> float:
    def linear(part: int) -> float:
        c = part / 255
        return c / 12.92 if c <= 0.04045 else float(((c + 0.055) / 1.055) ** 2.4)

    red, green, blue = (linear(int(colour[i : i + 2], 16)) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(a: str, b: str) -> float:
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_every_ground(scheme: int) -> None:
    block = asset("page.css").split(":root {")[1 + scheme].split("}")[0]
    colour = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    pairs = [("page", name) for name in ("ink", "soft", "good", "bad")]
    pairs += [(name, "on-strong") for name in ("blue", "green", "magenta", "violet", "teal", "brown", "red")]
    pairs += [(name, "on-bright") for name in ("yellow", "orange", "rose")]
    pairs += [("grey", "on-light"), ("maroon", "on-deep"), ("raised", "soft")]
    for ground, words in pairs:
        assert _contrast(colour[ground], colour[words]) >= 4.5, (ground, words)
    for name in ("red", "orange", "maroon", "rose"):  # communication stands out from the page
        assert _contrast(colour["page"], colour[name]) >= 3, name


def _lab(colour: str) -> list[float]:
    """Oklab: distances are as large as they look."""
    linear = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in linear]
    cones = ((0.4122, 0.5363, 0.0514), (0.2119, 0.6807, 0.1074), (0.0883, 0.2817, 0.63))
    roots = [sum(a * b for a, b in zip(row, linear, strict=True)) ** (1 / 3) for row in cones]
    axes = ((0.2105, 0.7936, -0.0041), (1.978, -2.4286, 0.4506), (0.0259, 0.7828, -0.8087))
    return [sum(a * b for a, b in zip(row, roots, strict=True)) for row in axes]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_of_categories_are_told_apart(scheme: int) -> None:
    block = asset("page.css").split(":root {")[1 + scheme].split("}")[0]
    colour = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    names = (
        "blue",
        "green",
        "magenta",
        "violet",
        "teal",
        "yellow",
        "orange",
        "brown",
        "red",
        "rose",
        "maroon",
    )
    for one, other in combinations(names, 2):
        assert math.dist(_lab(colour[one]), _lab(colour[other])) >= 0.1, (one, other)
