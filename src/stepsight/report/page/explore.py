"""A page with sliders over predictions that were made beforehand: no server, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stepsight.errors import StepsightError
from stepsight.prediction.answer import Prediction
from stepsight.prediction.breakdown import EXPOSED
from stepsight.prediction.display import look
from stepsight.report.page.pieces import Html, asset, frame, section, tag
from stepsight.tune.over import parsed_over
from stepsight.tune.trial import Row

FIGURES = (
    {"key": "samples_per_s", "title": "samples/s", "unit": "", "share": False},
    {"key": "tokens_per_s", "title": "tokens/s", "unit": "", "share": False},
    {"key": "tflops_per_gpu", "title": "TFLOP/s per GPU", "unit": "", "share": False},
    {"key": "mfu", "title": "MFU", "unit": "", "share": True},
    {"key": "exposed_communication", "title": "exposed communication", "unit": "", "share": True},
    {"key": "idle", "title": "idle, host-bound", "unit": "", "share": True},
    {"key": "memory_gb", "title": "memory of the fullest rank", "unit": "GB", "share": False},
    {"key": "cost_per_step", "title": "cost per step", "unit": "", "share": False},
)


@dataclass(frozen=True, slots=True)
class Axis:
    """One slider: its title and the values it moves over, as words."""

    title: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One answer of the grid. ``figures`` uses the keys of `FIGURES`; ``command`` makes it again."""

    step_us: float
    low_us: float
    high_us: float
    parts: Mapping[str, float]
    figures: Mapping[str, float | None] = field(default_factory=dict)
    fits: bool = True
    note: str = ""
    command: str = ""


def cell(prediction: Prediction, *, command: str = "") -> Cell:
    """What the page shows of a prediction."""
    rates = prediction.throughput
    whole = sum(prediction.breakdown_us.values()) or 1.0
    memory = prediction.memory
    figures = {
        "samples_per_s": rates.samples_per_s,
        "tokens_per_s": rates.tokens_per_s,
        "tflops_per_gpu": rates.tflops_per_gpu or None,
        "mfu": rates.mfu,
        "exposed_communication": prediction.exposed_communication_us / whole,
        "idle": prediction.breakdown_us.get("host_bound_idle", 0.0) / whole,
        "memory_gb": memory.total_bytes / 1e9 if memory else None,
    }
    return Cell(
        prediction.step_us, prediction.low_us, prediction.high_us, dict(prediction.breakdown_us), figures,
        fits=prediction.fits is not False, note="; ".join(prediction.what_would_help), command=command,
    )  # fmt: skip


def explore_page(
    title: str, axes: Sequence[Axis], cells: Sequence[Cell | None], *, why: Mapping[int, str] | None = None,
    start: Sequence[int] | None = None, command: str = "",
) -> str:  # fmt: skip
    """The page; ``cells`` in row-major order of the axes, None where there is no answer (``why`` says so)."""
    size = 1
    for axis in axes:
        size *= len(axis.names)
    if size != len(cells) or not axes:
        raise StepsightError(f"explore: {len(cells)} answers for a grid of {size}")
    categories = dict.fromkeys(name for c in cells if c for name in c.parts)
    content: dict[str, Any] = {
        "axes": axes,
        "cells": cells,
        "figures": FIGURES,
        "looks": {name: [look(name).word, look(name).colour] for name in categories},
        "start": list(start) if start else [len(axis.names) // 2 for axis in axes],
        "why": {str(k): v for k, v in (why or {}).items()},
    }
    safe = msgspec.json.encode(content).decode().replace("<", "\\u003c")
    script = Html(
        f'<script type="application/json" id="explore-data">{safe}</script>'
        f"<script>\n{asset('explore.js')}</script>"
    )
    top = tag("h1", title)
    lead = f"{size:,} predictions made beforehand; move a slider or press a bar."
    body = section("Explore", Html(asset("explore.html")), lead=lead)
    return frame(title, top, [body], scripts=[script], command=command)


PLATFORM = "platform"


def sweep_explore(rows: Sequence[Row], over: Sequence[str], title: str, *, command: str = "") -> str:
    """The page; ``over`` is what the sweep was asked for, in the order of its rows."""
    values = {path: [str(v) for v in listed or ()] for path, listed in parsed_over(over).items()}
    platforms = values.pop(PLATFORM, [])
    axes = [Axis(path, tuple(listed)) for path, listed in values.items()]
    if platforms:  # rows come platform by platform
        axes.insert(0, Axis(PLATFORM, tuple(platforms)))
    size = 1
    for axis in axes:
        size *= len(axis.names)
    if size != len(rows):
        raise StepsightError(f"--explore: {len(rows)} rows for {size} combinations")
    cells = [_cell_of_row(row) if row.priced else None for row in rows]
    why = {i: row.reason for i, row in enumerate(rows) if not row.priced}
    return explore_page(title, axes, cells, why=why, command=command)


def _cell_of_row(row: Row) -> Cell:
    figures = {
        "samples_per_s": row.samples_per_s or None,
        "tokens_per_s": row.tokens_per_s or None,
        "mfu": row.mfu or None,
        "memory_gb": row.memory_gb or None,
        "cost_per_step": row.cost_per_step,
    }
    parts = {_part(name): share * row.step_time_us for name, share in row.shares.items() if share > 0}
    note = "" if row.fits else f"It needs {row.memory_gb:.0f} GB of {row.usable_gb:.0f} GB usable."
    return Cell(row.step_time_us, row.low_us, row.high_us, parts, figures, fits=row.fits, note=note)


def _part(name: str) -> str:
    """A share's category as pages name it."""
    return EXPOSED if name.startswith("exposed") else name
