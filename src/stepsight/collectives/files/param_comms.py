"""Read what PARAM's communication benchmark (comms.py) prints: lines of ``COMMS-RES-<kind>``."""

from __future__ import annotations

import re
from pathlib import Path

from stepsight.collectives.files.timings import BenchmarkRun, Timing
from stepsight.errors import InputError, StepsightError
from stepsight.inputs import read_text
from stepsight.limits import check

_ROW = re.compile(r"COMMS-RES-(?P<kind>[a-z_0-9]+?)(?:-(?P<dtype>[a-z]\w*))?\s+(?P<numbers>\d[\d.\s]*)$")
_WORLD = re.compile(r"world[_ ]?size\W{1,3}(?P<ranks>\d+)", re.IGNORECASE)

KIND_OF_PARAM = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "all_gather_base": "all_gather",
    "reduce_scatter": "reduce_scatter", "reduce_scatter_base": "reduce_scatter", "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all", "all_to_allv": "all_to_allv", "broadcast": "broadcast",
    "reduce": "reduce",
}  # fmt: skip
COLUMNS = 9
"""size, elements per rank, p50, p75, p95, min, max, algbw, busbw; TFLOP/s may follow."""


def is_param_comms(text: str) -> bool:
    """Whether this looks like the output of PARAM's comms.py."""
    return "COMMS-RES-" in text


def read_param_comms(path: Path, ranks: int | None = None, nodes: int | None = None) -> BenchmarkRun:
    """The median times over ranks, with what was left out."""
    text = read_text(path, errors="replace")
    world = _WORLD.search(text)
    ranks = ranks or (int(world["ranks"]) if world else 0)
    if not ranks:
        raise InputError(str(path), "does not say how many ranks took part", "give --ranks")
    check(ranks, "RANKS", str(path), "its number of ranks")
    timings: list[Timing] = []
    skipped: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        row = _ROW.search(line)
        if row is None:
            continue
        kind = KIND_OF_PARAM.get(row["kind"])
        numbers = row["numbers"].split()
        if kind is None:
            skipped.append(f"line {number}: no model for {row['kind']}")
        elif len(numbers) < COLUMNS:
            skipped.append(f"line {number} is cut short")
        else:
            try:
                timing = Timing(kind, ranks, nodes or 1, float(numbers[0]), float(numbers[2]))
                timing.check()
            except (StepsightError, ValueError) as error:
                skipped.append(f"line {number}: {error}")
            else:
                timings.append(timing)
    if not timings:
        raise InputError(str(path), "no complete row of measured times", "run the benchmark to its end")
    return BenchmarkRun(tuple(timings), tuple(skipped))
