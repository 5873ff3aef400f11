"""The pace of this machine at this moment: a short fixed piece of work, timed beside what is measured.

Shared machines drift by 10 to 20 % within minutes. The probe is none of the models that are scored: a
matrix product, a pass over memory and a gather of scattered rows, about as long as each other, so that a
slow minute shows whether it is the cores or the memory that are slow.
"""

from __future__ import annotations

import time

import numpy as np

SIDE, STREAM, ROWS, COLUMNS, PICKED = 384, 2**21, 2**18, 64, 2**15
"""Sizes of the product, the pass (values), the table and the rows picked from it: 1–3 ms a core in all."""
REPEATS = 5


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
        """The median of a few turns, in µs."""
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            self._once()
            times.append(time.perf_counter() - began)
        return float(np.median(times) * 1e6)

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
