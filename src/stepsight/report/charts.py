"""Charts for pages: waterfall, lines, points. Plain HTML and SVG, readable without a script.

Numbers are drawn as given; callers pass the words for them (`shown`), so that a chart and the
table next to it cannot differ in units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise

from stepsight.report.pieces import Fragment, Html, joined, legend, table, tag, text

WIDTH, HEIGHT = 720.0, 316.0
LEFT, RIGHT, TOP, BOTTOM = 104.0, 40.0, 8.0, 62.0
TICKS = 5
COLOURS = ("gemm", "communication", "embedding", "attention", "optimizer", "vector", "conv", "copy")


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a line: where, how high, between which bounds, and what a reader sees on it."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A named line of points; ``colour`` is a class of ``page.css``, chosen by its place where empty."""

    name: str
    points: tuple[Point, ...]
    colour: str = ""


def compact(value: float) -> str:
    """12.5, 400 k, 1.2 M: short enough for an axis."""
    for scale, word in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= scale:
            return f"{value / (1e3 if word == 'k' else scale):,.4g} {word}"
    return f"{value:,.4g}"


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its title, how a value reads, and for words instead of numbers their names in order."""

    title: str
    shown: Callable[[float], str] = compact
    names: tuple[str, ...] = ()


def waterfall(first: Fragment, changes: Sequence[Fragment], last: Fragment) -> Html:
    """From the first total to the last one, one line for each part that moved it."""
    reached = [first.value, *accumulate((x.value for x in changes), initial=first.value)][1:]
    spans = [(min(a, b), abs(b - a)) for a, b in pairwise(reached)]
    most = max([first.value, last.value, *(low + wide for low, wide in spans)]) or 1.0
    rows: list[tuple[object, ...]] = [
        (x.word, _span(low, wide, most, x.colour), x.shown)
        for x, (low, wide) in zip(changes, spans, strict=True)
    ]
    ends = [(tag("b", x.word), _span(0.0, x.value, most, "total"), x.shown) for x in (first, last)]
    rows = [ends[0], *rows, ends[1]]
    return tag("div", table(("part", "", "time"), rows), classes="waterfall")


def _span(low: float, wide: float, most: float, colour: str) -> Html:
    left, width = 100 * low / most, max(100 * wide / most, 0.4)
    style = f"left:{min(left, 99.6):.2f}%;width:{width:.2f}%"
    return Html(f'<div class="fall c-{escape(colour)}" aria-hidden="true"><i style="{style}"></i></div>')


def lines(drawn: Sequence[Line], x: Axis, y: Axis, *, name: str) -> Html:
    """Lines over a common axis that begins at zero, with their intervals as bands."""
    points = [p for line in drawn for p in line.points]
    if not points:
        return Html("")
    at = _across(points)
    top, ticks = _ticks(max(p.high if p.high is not None else p.y for p in points))
    up = _up(top)
    body = [_grid(ticks, up, y), _below(points, x, at)]
    for number, line in enumerate(drawn):
        body.append(_line(line, COLOURS[number % len(COLOURS)], at, up))
    meaning = legend((line.name, COLOURS[i % len(COLOURS)]) for i, line in enumerate(drawn) if line.name)
    return joined([_svg(body, name, x, y), meaning if len(drawn) > 1 else ""])


def points(
    drawn: Sequence[Line], front: Sequence[Point], x: Axis, y: Axis, *, name: str,
    limit: tuple[float, str] | None = None,
) -> Html:  # fmt: skip
    """Points, the front of those that no other beats in both, and a limit of y with its word."""
    everything = [p for line in drawn for p in line.points]
    if not everything:
        return Html("")
    most_x, ticks_x = _ticks(max(p.x for p in everything))
    before = [tick for tick in ticks_x if tick <= min(p.x for p in everything)]
    least_x, ticks_x = before[-1], ticks_x[len(before) - 1 :]
    top, ticks = _ticks(max([p.y for p in everything] + [limit[0] if limit else 0.0]))
    up = _up(top)

    def at(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - least_x) / (most_x - least_x)

    below = joined(_tick_x(at(v), x.shown(v)) for v in ticks_x)
    body = [_grid(ticks, up, y), below]
    if len(front) > 1:
        body.append(Html(f'<path class="front" d="{_path(front, at, up)}"/>'))
    if limit:
        body.append(_limit(limit, up))
    colours = [line.colour or COLOURS[i % len(COLOURS)] for i, line in enumerate(drawn)]
    for line, colour in zip(drawn, colours, strict=True):
        body.append(joined(_dot(p, colour, at, up) for p in line.points))
    meaning = legend((line.name, c) for line, c in zip(drawn, colours, strict=True))
    return joined([_svg(body, name, x, y), meaning if len(drawn) > 1 else ""])


def _path(points: Sequence[Point], at: Callable[[float], float], up: Callable[[float], float]) -> str:
    return " ".join(f"{'L' if i else 'M'}{at(p.x):.1f} {up(p.y):.1f}" for i, p in enumerate(points))


def _limit(limit: tuple[float, str], up: Callable[[float], float]) -> Html:
    """A dashed line across the chart, with what it limits."""
    height = up(limit[0])
    return Html(
        f'<path class="limit" d="M{LEFT:.0f} {height:.1f}H{WIDTH - RIGHT:.0f}"/>'
        f'<text x="{WIDTH - RIGHT:.0f}" y="{height - 5:.1f}" text-anchor="end">{text(limit[1])}</text>'
    )


def _across(points: Sequence[Point]) -> Callable[[float], float]:
    """Where a value stands from left to right: evenly by rank order, so 8, 64, 512 have equal gaps."""
    values = sorted({p.x for p in points})
    room = WIDTH - LEFT - RIGHT
    edge = room / (2 * len(values)) if len(values) > 1 else room / 2
    spread = (room - 2 * edge) / max(len(values) - 1, 1)
    place = {value: LEFT + edge + spread * i for i, value in enumerate(values)}
    return place.__getitem__


def _up(top: float) -> Callable[[float], float]:
    return lambda value: TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)


def _ticks(most: float) -> tuple[float, list[float]]:
    """A round top and the round values below it, zero among them."""
    rough = (most or 1.0) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    count = max(math.ceil((most or 1.0) / step - 1e-9), 1)
    return step * count, [step * i for i in range(count + 1)]


def _grid(ticks: Sequence[float], up: Callable[[float], float], y: Axis) -> Html:
    drawn = [
        f'<path class="grid" d="M{LEFT:.0f} {up(v):.1f}H{WIDTH - RIGHT:.0f}"/>'
        f'<text x="{LEFT - 8:.0f}" y="{up(v) + 4:.1f}" text-anchor="end">{text(y.shown(v))}</text>'
        for v in ticks
    ]
    return Html("".join(drawn))


def _below(points: Sequence[Point], x: Axis, at: Callable[[float], float]) -> Html:
    values = sorted({p.x for p in points})
    every = -(-len(values) // 12)
    shown = [(v, x.names[int(v)] if x.names else x.shown(v)) for v in values[::every]]
    return joined(_tick_x(at(v), word) for v, word in shown)


def _tick_x(place: float, word: str) -> Html:
    return Html(
        f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 30:.0f}" text-anchor="middle">{text(word)}</text>'
    )


def _line(line: Line, colour: str, at: Callable[[float], float], up: Callable[[float], float]) -> Html:
    ordered = sorted(line.points, key=lambda p: p.x)
    band = [p for p in ordered if p.low is not None and p.high is not None]
    drawn = []
    if len(band) > 1:
        over = " ".join(f"{at(p.x):.1f} {up(p.high or 0):.1f}" for p in band)
        under = " ".join(f"{at(p.x):.1f} {up(p.low or 0):.1f}" for p in reversed(band))
        drawn.append(f'<path class="band c-{colour}" d="M{over} {under}Z"/>')
    drawn.append(f'<path class="line c-{colour}" d="{_path(ordered, at, up)}"/>')
    return joined([Html("".join(drawn)), *(_dot(p, colour, at, up) for p in ordered)])


def _dot(p: Point, colour: str, at: Callable[[float], float], up: Callable[[float], float]) -> Html:
    hint = f"<title>{text(p.hint)}</title>" if p.hint else ""
    return Html(f'<circle class="c-{colour}" cx="{at(p.x):.1f}" cy="{up(p.y):.1f}" r="4.5">{hint}</circle>')


def _svg(body: Sequence[Html], name: str, x: Axis, y: Axis) -> Html:
    middle = (LEFT + WIDTH - RIGHT) / 2
    titles = (
        f'<text x="{middle:.0f}" y="{HEIGHT - 4:.0f}" text-anchor="middle">{text(x.title)}</text>'
        f'<text transform="translate(20 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{text(y.title)}</text>'
    )
    return Html(
        f'<svg class="chart" viewBox="0 -8 {WIDTH:.0f} {HEIGHT + 8:.0f}" role="img" '
        f'aria-label="{escape(name, quote=True)}">{joined(body)}{titles}</svg>'
    )
