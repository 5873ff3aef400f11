"""A launch: the runtime call and the GPU work it started; and the GPU's clock against the host's.

A profiler converts the stamps of two clocks, not always well. No kernel begins before its launch call, and no
synchronize call of the whole device returns before the work launched ahead of it has ended. A clock that
breaks the one runs early, one that breaks the other late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.trace.constants import CLOCK_DRIFT_US, CLOCK_QUANTILE, SHORTEST_LAUNCH_US
from stepsight.trace.reading.events import Event

NO_OP = -1
"""Stands for "in no operator" where an operator's index is expected."""


@dataclass(slots=True)
class Launch:
    """One runtime call that put work on a stream; a graph launch puts many kernels there.

    ``index`` is its place in `LinkedTrace.launches`. ``free_us``: for each kernel, when its stream had done
    everything before it.
    """

    call: Event
    gpu: list[Event]
    op: int = NO_OP
    """Index of the innermost operator around the call in `LinkedTrace.ops`."""
    index: int = -1
    free_us: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuClock:
    """What to add to the stamps of GPU events, and how many kernels begin before their call even so: theirs
    is another one."""

    shift_us: float = 0.0
    early_kernels: int = 0


def gpu_clock(launches: Sequence[Launch], syncs: Sequence[Event]) -> GpuClock:
    """How far the GPU's clock is off, by a rank's launches and synchronize calls.

    A launch that was joined with a kernel of another moment must not move the whole trace: of the
    launches the earliest few are left out, and what leads by more than the rest is counted.
    """
    if not launches:
        return GpuClock()
    leads = np.array([x.call.ts - x.gpu[0].ts for x in launches])
    bad, drift_us = CLOCK_QUANTILE, CLOCK_DRIFT_US
    lead = float(np.quantile(leads, 1.0 - bad, method="lower")) if len(leads) * bad >= 1 else _agreed(leads)
    early = int((leads > max(lead, 0.0) + drift_us).sum())
    shortest_us = SHORTEST_LAUNCH_US
    if lead > 0.0:
        return GpuClock(float(leads[leads <= lead + drift_us].max()) + shortest_us, early)
    # A late clock shows twice: work outlasts the call that waited for it, and no launch begins soon.
    late_us = min(_outlasting_us(launches, syncs), -lead - shortest_us)
    return GpuClock(-late_us if late_us > drift_us else 0.0, early)


def _outlasting_us(launches: Sequence[Launch], syncs: Sequence[Event]) -> float:
    """The most by which work seems to outlast a device-wide synchronize call after its launch."""
    whole = [c for c in syncs if "Device" in c.name or "Ctx" in c.name]
    if not whole:
        return 0.0
    calls = np.array([x.call.ts for x in launches])
    order = np.argsort(calls, kind="stable")
    ended = np.maximum.accumulate(np.array([x.gpu[-1].end for x in launches])[order])
    before = np.searchsorted(calls[order], [c.ts for c in whole])
    outlasting = [float(ended[n - 1]) - c.end for n, c in zip(before.tolist(), whole, strict=True) if n]
    return max(outlasting, default=0.0)


def _agreed(leads: FloatArray) -> float:
    """The largest lead that a second launch confirms within the clocks' drift; of one launch, its own."""
    ordered = np.sort(leads)[::-1]
    if len(ordered) == 1:
        return float(ordered[0])
    close = np.flatnonzero(ordered[:-1] - ordered[1:] <= CLOCK_DRIFT_US)
    return float(ordered[close[0]]) if len(close) else float(np.median(ordered))
