"""A sweep as a page with sliders: one for each field, answered from the rows."""

from __future__ import annotations

from collections.abc import Sequence

from stepsight.errors import StepsightError
from stepsight.prediction.breakdown import EXPOSED
from stepsight.report.page.explore import Axis, Cell, explore_page
from stepsight.tune.over import parsed_over
from stepsight.tune.trial import Row

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
    cells = [_cell(row) if row.priced else None for row in rows]
    why = {i: row.reason for i, row in enumerate(rows) if not row.priced}
    return explore_page(title, axes, cells, why=why, command=command)


def _cell(row: Row) -> Cell:
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
