"""A prediction in a notebook or a Python prompt: one line, a small table, rows, a bar chart."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from stepsight.errors import StepsightError
from stepsight.prediction.categories import look
from stepsight.prediction.rates import assumed, rate_lines
from stepsight.prediction.units import share, size, time

if TYPE_CHECKING:
    from stepsight.prediction.answer import Prediction

_CELL = "text-align:left;padding:2px 12px 2px 0"
_BAR = "display:inline-block;height:10px;background:#2270cf;border-radius:2px"


def one_line(p: Prediction) -> str:
    """``<Prediction dlrm on 8xH100-SXM: 1.93 ms (1.41 ms to 2.64 ms), 2,120,000 samples/s>``."""
    rates = "".join(f", {value} {name}" for name, value in rate_lines(p)[:1])
    fits = ", does not fit" if p.fits is False else ""
    return (
        f"<Prediction {p.workload or 'step'} on {p.platform}: {time(p.step_us)} "
        f"({time(p.low_us)} to {time(p.high_us)}){rates}{fits}>"
    )


def as_html(p: Prediction) -> str:
    """What a notebook shows: the number, its interval, what was assumed, and where the step goes."""
    head = f"{escape(p.workload or 'step')} on {escape(p.platform)}: <b>{time(p.step_us)}</b> per step"
    lines = [
        f"{head} (90 % interval {time(p.low_us)} to {time(p.high_us)})",
        f"assumed: {escape(assumed(p))}",
        ", ".join(f"{value} {name}" for name, value in rate_lines(p)),
    ]
    if p.memory and not p.memory.fits:
        lines.insert(0, f'<b style="color:#b3261e">Does not fit, by {size(p.memory.excess_bytes)}.</b>')
    rows = "".join(_row(row) for row in rows_of(p))
    names = "".join(
        f'<th style="{_CELL}">{name}</th>' for name in ("part", "time", "share", "", "step without it")
    )
    return f"<div>{'<br>'.join(line for line in lines if line)}<table><tr>{names}</tr>{rows}</table></div>"


def _row(row: dict[str, Any]) -> str:
    bar = f'<span style="{_BAR};width:{120 * row["share"]:.0f}px"></span>'
    free = time(row["step_if_free_us"]) if row["step_if_free_us"] is not None else ""
    cells = (escape(look(row["part"]).word), time(row["time_us"]), share(row["share"]), bar, free)
    return "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells) + "</tr>"


def rows_of(p: Prediction) -> list[dict[str, Any]]:
    """Where the step goes, largest part first: part, time_us, share, step_if_free_us."""
    free = {s.category: s.if_free_us for s in p.sensitivities}
    stands_for = {"exposed_communication": "communication", "host_bound_idle": "host"}
    total = sum(p.breakdown_us.values()) or 1.0
    return [
        {"part": n, "time_us": us, "share": us / total, "step_if_free_us": free.get(stands_for.get(n, n))}
        for n, us in sorted(p.breakdown_us.items(), key=lambda item: -item[1])
    ]


def as_frame(p: Prediction) -> Any:
    """`rows_of` as a pandas DataFrame."""
    try:
        import pandas
    except ImportError:
        raise StepsightError("to_frame() needs pandas: pip install pandas; rows() needs nothing") from None
    return pandas.DataFrame(rows_of(p))


def plotted(p: Prediction, axes: Any = None) -> Any:
    """A bar for each part of the step; gives the axes."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise StepsightError("plot() needs matplotlib: pip install 'stepsight[plot]'") from None
    rows = rows_of(p)[::-1]
    if axes is None:
        _, axes = plt.subplots(figsize=(7, 0.4 * len(rows) + 1.2))
    axes.barh(
        [look(row["part"]).word for row in rows], [row["time_us"] / 1e3 for row in rows], color="#2270cf"
    )
    axes.set_xlabel("ms")
    axes.set_title(f"{p.workload or 'step'} on {p.platform}: {time(p.step_us)} per step")
    return axes
