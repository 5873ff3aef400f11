"""Two small plots in SVG: points of two figures, and lines over what was varied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from stepsight.report.page.pieces import Html

WIDTH, HEIGHT, LEFT, BOTTOM, PAD, TOP = 640, 300, 72, 44, 14, 30
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 4")
"""Lines are told apart by their dashes and their label, not by colour alone."""


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration; ``marked`` ones are on the front."""

    x: float
    y: float
    label: str
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """A line: the names of its places on the x axis and its values there."""

    name: str
    points: tuple[tuple[str, float], ...]


def scatter(points: Sequence[Point], x_name: str, y_name: str) -> Html:
    """Points, the marked ones filled and joined."""
    if not points:
        return Html("")
    x_most, y_most = _round_up(max(p.x for p in points)), _round_up(max(p.y for p in points))

    def at(p: Point) -> tuple[float, float]:
        return _x(p.x / x_most), _y(p.y / y_most)

    drawn = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4 if p.marked else 2}" '
        f'class="{"c-gemm" if p.marked else "c-idle"}" fill="currentColor" '
        f'opacity="{1 if p.marked else 0.35}">'
        f"<title>{escape(p.label)}: {p.x:,.1f}, {p.y:,.1f}</title></circle>"
        for p, (x, y) in ((p, at(p)) for p in sorted(points, key=lambda p: p.marked))
    ]
    return _svg(drawn, _ticks(x_most), _ticks(y_most), x_name, y_name)


def line_plot(lines: Sequence[Series], x_name: str, y_name: str) -> Html:
    """Lines over named places, evenly spaced, from zero."""
    places = list(dict.fromkeys(name for line in lines for name, _ in line.points))
    if not places:
        return Html("")
    most = _round_up(max(value for line in lines for _, value in line.points))
    position = {name: (i + 0.5) / len(places) for i, name in enumerate(places)}
    drawn = []
    for number, line in enumerate(lines):
        path = [(_x(position[name]), _y(value / most)) for name, value in line.points]
        dash = DASHES[number % len(DASHES)]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
        drawn.append(
            f'<polyline points="{joined}" fill="none" stroke="currentColor" stroke-width="1.5" '
            f'stroke-dasharray="{dash}" opacity="0.8"/>'
        )
        for (x, y), (name, value) in zip(path, line.points, strict=True):
            said = escape(f"{line.name}, {name}: {value:,.4g}")
            drawn.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="currentColor"><title>{said}</title></circle>'
            )
    ticks = [(position[name], name) for name in places]
    key = "".join(
        f'<li><svg width="34" height="8" aria-hidden="true"><line x1="0" y1="4" x2="34" y2="4" '
        f'stroke="currentColor" stroke-width="2" stroke-dasharray="{DASHES[i % len(DASHES)]}"/></svg> '
        f"{escape(line.name)}</li>"
        for i, line in enumerate(lines)
    )
    return Html(_svg(drawn, ticks, _ticks(most), x_name, y_name) + f'<ul class="legend">{key}</ul>')


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - PAD)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def _round_up(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** (len(f"{int(value)}") - 1) if value >= 1 else 10.0 ** -(len(f"{int(1 / value)}"))
    return next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10, 20) if step * power >= value)


def _ticks(most: float) -> list[tuple[float, str]]:
    return [(i / 4, _number(most * i / 4)) for i in range(5)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _svg(
    drawn: Sequence[str], x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]],
    x_name: str, y_name: str,
) -> Html:  # fmt: skip
    lines = [
        f'<line x1="{LEFT}" x2="{WIDTH - PAD}" y1="{_y(s):.1f}" y2="{_y(s):.1f}" '
        f'stroke="currentColor" opacity="0.15"/>'
        f'<text x="{LEFT - 6}" y="{_y(s) + 4:.1f}" text-anchor="end">{escape(t)}</text>'
        for s, t in y_ticks
    ]
    lines += [
        f'<text x="{_x(s):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{escape(t)}</text>'
        for s, t in x_ticks
    ]
    lines.append(
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_name)}</text>'
    )
    lines.append(f'<text x="4" y="{TOP - 18}" text-anchor="start">{escape(y_name)}</text>')
    label = escape(f"{y_name} over {x_name}", quote=True)
    style = 'style="width:100%;max-width:760px;height:auto;font:11px system-ui;fill:currentColor"'
    return Html(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" {style}>'
        + "".join([*lines, *drawn, "</svg>"])
    )
