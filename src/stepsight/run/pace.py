"""The pace of this machine at this moment: a short fixed piece of work, timed beside what is measured.

Shared machines drift by 10 to 20 % within minutes. The probe is none of the models that are scored: a
matrix product, a pass over memory and a gather of scattered rows, about as long as each other, so that a
slow minute shows whether it is the cores or the memory that are slow.

One reading of the probe scatters more than the steps beside it, so a pace is the middle of all readings
that were taken among the same interleaved blocks, and how far steps follow it is learned from workloads
that were measured at two different paces.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

SIDE, STREAM, ROWS, COLUMNS, PICKED = 384, 2**21, 2**18, 64, 2**15
"""Sizes of the product, the pass (values), the table and the rows picked from it: 1–3 ms a core in all."""
REPEATS = 9
LOW = 0.25
"""Disturbances only make a turn longer: the lower quartile of the turns counts, as with steps."""
SCATTER, DOUBT = 0.05, 0.3
"""Standard deviations of ln(step) at one pace, and of how far steps follow the probe before it was seen."""


class Probe:
    """The probe's operands, made once; each call times it."""

    def __init__(self, device: str = "cpu") -> None:
        import torch

        generator = torch.Generator().manual_seed(7)
        self._cuda = device.startswith("cuda")
        self._square = torch.rand(SIDE, SIDE, generator=generator).to(device)
        self._stream = torch.rand(STREAM, generator=generator).to(device)
        self._table = torch.rand(ROWS, COLUMNS, generator=generator).to(device)
        self._picked = torch.randint(ROWS, (PICKED,), generator=generator).to(device)
        self._once()

    def time_us(self) -> float:
        """The lower quartile of a few turns, in µs."""
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            self._once()
            times.append(time.perf_counter() - began)
        return float(np.quantile(times, LOW) * 1e6)

    def _once(self) -> None:
        import torch

        with torch.no_grad():
            _ = self._square @ self._square
            _ = self._stream + self._stream
            _ = self._table.index_select(0, self._picked)
        if self._cuda:
            torch.cuda.synchronize()


def probe_rank(rank: object) -> float:
    """On one rank: the probe's time."""
    return Probe(str(getattr(rank, "device", "cpu"))).time_us()


def followed(changes: Sequence[tuple[float, float]]) -> float:
    """How far steps follow the probe, 0 to 1, from pairs (change of ln pace, change of ln step).

    Least squares through the origin, drawn to one where the pace hardly changed.
    """
    pull = (SCATTER / DOUBT) ** 2
    pace, step = np.array(changes, float).reshape(-1, 2).T
    return float(np.clip((pace @ step + pull) / (pace @ pace + pull), 0.0, 1.0))
