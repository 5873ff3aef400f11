"""What the operators of a measured step sum to, where they were timed one by one on the same board.

``nlp_ops_fp32.parquet`` holds the operators of the steps of ``nlp_fp32.csv``, those of one layer once. Timed
one by one, with the host's time around each, they bound the pass from above: one that takes much longer
waited for something that is no operator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.datasets.kernel_tables.files import read_table
from lab.datasets.kernel_tables.rows import Table

FILE = "nlp_ops_fp32.parquet"
KEYS = ("device", "model", "mode", "seqlen", "batch", "option")
"""What tells one step from another, in both files."""
MOST = 1.25
"""How much longer than the sum of its operators a pass may take. All but five of the listed passes take at
most 1.16 times as long, those five 1.48 times or more."""
_LAYER = re.compile(r"\.(?:layer|layers|h)\.0\.")
"""Modules of the first layer, the only one that is listed."""

Step = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Passes:
    """Forward and backward of a step in ms."""

    forward_ms: float
    backward_ms: float


def key_of(row: Mapping[str, str]) -> Step:
    return tuple(row[key] for key in KEYS)


def operator_sums(data: Path, layers: Mapping[str, int]) -> dict[Step, Passes]:
    """Steps whose operators are listed, each operator of a layer counted once a layer."""
    path = data / "kernels" / FILE
    if not path.is_file():
        return {}
    table = read_table(path)
    members: dict[Step, list[int]] = {}
    for i, step in enumerate(zip(*(map(str, table[key]) for key in KEYS), strict=True)):
        if step[1] in layers:
            members.setdefault(step, []).append(i)
    return {step: _summed(table, rows, layers[step[1]]) for step, rows in members.items()}


def _summed(table: Table, rows: list[int], layers: int) -> Passes:
    """Operators stand in the order they run: the layer goes from its first module to its last."""
    inside = [n for n, i in enumerate(rows) if _LAYER.search(str(table["target"][i]))]
    first, last = (inside[0], inside[-1]) if inside else (0, -1)
    counts = np.array([layers if first <= n <= last else 1 for n in range(len(rows))])
    forward, backward, added = (
        float(counts @ np.asarray(table[key], dtype=np.float64)[rows]) / 1e3
        for key in ("forward_us", "backward_us", "accumulate_us")
    )
    return Passes(forward, backward + added)


def contradicted(row: Mapping[str, str], sums: Mapping[Step, Passes]) -> bool:
    """Whether a pass takes much longer than its operators; not where those were not measured."""
    own = sums.get(key_of(row))
    if own is None:
        return False
    pairs = ((row["fw_ms"], own.forward_ms), (row["bw_ms"], own.backward_ms))
    return any(float(whole or 0) > MOST * parts > 0 for whole, parts in pairs)
