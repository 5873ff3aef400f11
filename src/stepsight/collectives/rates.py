"""More bandwidth never costs time: prices that only fall as links and NICs get faster.

The nearest measured machine changes with the NIC's rate, and one with slower NICs may have run a better
tuned stack. A platform's NICs therefore cost at most what slower ones would: prices are made at the rates
of `RATES_GBPS`, each at most that of the rates below it, and interpolated between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from stepsight.collectives.constants import LISTED_RATE, RATES_GBPS
from stepsight.collectives.curve import Curve
from stepsight.collectives.measured import MeasuredSystem, RankTransfer
from stepsight.collectives.pricing import Pricing, price
from stepsight.collectives.topology import GroupShape
from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import find_gpu
from stepsight.hardware.spec import PlatformSpec


def price_monotone(
    kind: str,
    shape: GroupShape,
    platform: PlatformSpec,
    systems: Sequence[MeasuredSystem],
    transfer: RankTransfer,
) -> Pricing:
    """The price list of a group, monotone in the rate of the link that bounds it."""
    nic, link = platform.nic, platform.link

    def over_nodes(rate: float) -> Pricing:
        faster = None if nic is None else replace(nic, gbps=rate)
        return price(kind, shape, replace(platform, nic=faster), systems, transfer)

    def in_node(rate: float) -> Pricing:
        return price(kind, shape, replace(platform, link=replace(link, gbps=rate)), systems, transfer)

    if shape.inside_a_node:
        entry = find_gpu(platform.gpu.name)
        usual = entry.link.gbps if entry else 0.0
        if usual <= 0 or link.gbps <= usual:
            return in_node(link.gbps)
        return _at_most(tuple(usual * 2.0**k for k in range(8)), link.gbps, in_node)
    if nic is None or nic.gbps <= 0:
        return price(kind, shape, platform, systems, transfer)
    return _at_most(RATES_GBPS, nic.gbps, over_nodes)


def _at_most(rates: tuple[float, ...], wanted: float, at: Callable[[float], Pricing]) -> Pricing:
    """The price at a rate, at most that of every lower one of ``rates``; between two of them interpolated."""
    rate = min(max(wanted, rates[0]), rates[-1])
    near = [r for r in rates if abs(math.log(r / rate)) <= LISTED_RATE]
    top = near[0] if near else min(r for r in rates if r > rate)
    lists = [at(r) for r in rates if r <= top]
    sizes = np.unique(np.concatenate([one.curve.sizes for one in lists]))
    times = [one.curve.time_us(sizes) for one in lists]
    best = np.minimum.reduce(times)
    if not near:
        below = rates[rates.index(top) - 1]
        weight = math.log(rate / below) / math.log(top / below)
        best = np.exp((1 - weight) * np.log(np.minimum.reduce(times[:-1])) + weight * np.log(best))
    best = best * max(1.0, rate / wanted)  # slower than any listed rate
    return _with_times(lists[-1], sizes, np.maximum.accumulate(best))


def _with_times(priced: Pricing, sizes: FloatArray, times: FloatArray) -> Pricing:
    """The same sources with other times."""
    at = np.clip(np.searchsorted(priced.curve.sizes, sizes), 0, len(priced.curve) - 1)
    return Pricing.of(
        Curve(sizes, times, priced.curve.measured_spread), priced.pieces, priced.piece_of_knot[at]
    )
