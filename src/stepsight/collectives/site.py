"""A cluster's own measured bandwidth over nodes: what was measured there beats what is carried over.

Few sites measure whole curves; many know one figure a node count, such as the bus bandwidth of a large
all_reduce. What such a figure says of messages of other sizes:

- NCCL sends all_gather and reduce_scatter around a ring, in n - 1 steps over n ranks. Figures of several
  numbers of nodes tell the time of a step from that of the bytes: at one size of message only the steps
  become more. Smaller messages take as many, until a rank's share is small enough for the low-latency
  protocol (LL).
- Of other collectives, and of one figure alone, the measured message takes longer than on the carried curve
  because its bytes do; a small message does not.

Between measured counts the figures are interpolated, beyond the last they stay. An interval is never wider
than without the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepsight.collectives.extrapolate import RINGS, wire_share
from stepsight.collectives.roofline import GroupShape, bus_factor, group_shape
from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.hardware.spec import PlatformSpec
from stepsight.inputs import number
from stepsight.program.job import COLLECTIVE_KINDS
from stepsight.records import nearest, section

if TYPE_CHECKING:
    from stepsight.collectives.models import CollectiveModels

C = area("collectives")


@dataclass(frozen=True, slots=True)
class SiteBandwidth:
    """Bus bandwidth in GB/s of one large message, by kind and number of nodes.

    ``hop_us``: what every doubling of the nodes adds to a collective, however small.
    ``axes``: the axes of parallelism that the figures were taken for; none: every group over nodes.
    """

    bytes: float
    gbps: Mapping[str, Mapping[int, float]]
    hop_us: float = 0.0
    axes: tuple[str, ...] = ()

    @property
    def every_axis(self) -> bool:
        return not self.axes

    def of(self, axis: str) -> SiteBandwidth | None:
        """The figures for an axis, where there are some."""
        return self if self.every_axis or axis in self.axes else None


@dataclass(frozen=True, slots=True)
class _Figures:
    """What a site measured of one collective, by the logarithm of its nodes: its times over the carried
    curve's, and over those of the ring that explains all of them (``step_us`` is 0 where none does)."""

    doublings: FloatArray
    ln_slower: FloatArray
    ln_off_ring: FloatArray
    step_us: float
    wire: float

    def slower(self, nodes: int) -> float:
        """How much longer than on the carried curve the measured message takes."""
        return float(np.exp(np.interp(np.log2(nodes), self.doublings, self.ln_slower)))

    def ring_us(self, steps: FloatArray, wire_us: FloatArray, nodes: int) -> FloatArray:
        """The ring's time: its steps and its bytes."""
        off = np.exp(np.interp(np.log2(nodes), self.doublings, self.ln_off_ring))
        return np.asarray(off * (self.step_us * steps + self.wire * wire_us), dtype=np.float64)


def _ring(steps: FloatArray, wire_us: FloatArray, measured_us: FloatArray) -> tuple[float, float]:
    """Time per step, and per time that the bytes take at the NICs' rate, by least squares of relative errors.

    One figure cannot tell a step's time from a byte's; where a ring explains nothing, the step takes none.
    """
    parts = np.stack([steps, wire_us], axis=1) / measured_us[:, None]
    step_us, wire = np.linalg.lstsq(parts, np.ones(len(steps)), rcond=None)[0]
    return (float(step_us), float(wire)) if len(steps) > 1 and min(step_us, wire) > 0 else (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class SiteCollectives:
    """A platform's models, with what its cluster really reaches."""

    models: CollectiveModels
    site: SiteBandwidth
    _read: dict[str, _Figures] = field(default_factory=dict, repr=False, compare=False)

    @property
    def platform(self) -> PlatformSpec:
        return self.models.platform

    def estimate(self, kind: str, bytes: npt.ArrayLike, ranks: Sequence[int]) -> Estimates:
        """As `CollectiveModels.estimate`."""
        found = self.models.estimate(kind, bytes, ranks)
        shape = group_shape(ranks, self.platform)
        name = kind if kind in self.site.gbps else "all_gather"
        if shape.inside_a_node or name not in self.site.gbps:
            return found
        figures = self._figures(name)
        sizes = np.atleast_1d(np.asarray(bytes, dtype=np.float64))
        large_us = float(self.models.estimate(kind, [self.site.bytes], ranks).time_us[0])
        slower = figures.slower(shape.nodes)
        if (
            name != kind and kind not in RINGS
        ):  # another collective's bytes take the NICs as long, not its steps
            if figures.step_us:
                slower = figures.wire * float(self._wire_us(kind, self.site.bytes, shape)) / large_us
            slower = max(slower, 1.0)
        time_us = found.time_us * min(slower, 1.0)
        if kind in RINGS and figures.step_us:
            steps = (shape.ranks - 1) * np.minimum(sizes / shape.ranks / C.RING_CHUNK_BYTES, 1.0)
            ring_us = figures.ring_us(steps, self._wire_us(kind, sizes, shape), shape.nodes)
            time_us = np.maximum(time_us, ring_us)
        else:
            time_us = time_us + max(slower - 1.0, 0.0) * large_us * sizes / self.site.bytes
        time_us = time_us + self.site.hop_us * np.log2(shape.nodes)
        if shape.nodes not in self.site.gbps.get(kind, {}):
            return replace(found, time_us=time_us)
        return self._as_measured(replace(found, time_us=time_us), sizes, shape.nodes)

    def _as_measured(self, found: Estimates, sizes: FloatArray, nodes: int) -> Estimates:
        """Times of a kind on a number of nodes that the site measured: at its size only the day differs; away
        from it the carried curve says as much as it does without the site."""
        distance = np.abs(np.log(np.maximum(sizes, 1.0) / self.site.bytes))
        spread = np.hypot(C.SITE_SPREAD, C.SITE_SIZE_SPREAD * distance)
        near = distance <= np.log(C.SITE_NEAR)
        note = f"[site], measured at {self.site.bytes / 1e6:,.6g} MB on {nodes} nodes"
        return Estimates(
            found.time_us,
            np.where(near, np.minimum(found.source, int(Source.MEASURED)), found.source),
            np.minimum(found.spread, spread),
            found.notes | {int(i): note for i in np.flatnonzero(near)},
        )

    def _wire_us(self, kind: str, bytes: FloatArray | float, shape: GroupShape) -> FloatArray:
        """What the bytes take at the NICs' rate."""
        nic = self.platform.nic
        rate = nic.gbps if nic and nic.gbps > 0 else np.inf
        return np.asarray(bytes, dtype=np.float64) * wire_share(kind, shape) / (rate * 1e3)

    def _figures(self, kind: str) -> _Figures:
        if kind not in self._read:
            self._read[kind] = self._measured(kind)
        return self._read[kind]

    def _measured(self, kind: str) -> _Figures:
        """The figures of one kind, taken over all GPUs of each number of nodes."""
        nodes, size = sorted(self.site.gbps[kind]), self.site.bytes
        cluster = replace(self.platform, nodes=max(*nodes, self.platform.nodes))
        models = replace(self.models, platform=cluster)
        groups = [range(n * cluster.gpus_per_node) for n in nodes]
        ranks = np.array([len(group) for group in groups])
        carried_us = np.array([models.estimate(kind, [size], group).time_us[0] for group in groups])
        wire_us = np.array([self._wire_us(kind, size, group_shape(group, cluster)) for group in groups])
        rates = np.array([self.site.gbps[kind][n] for n in nodes])
        measured_us = np.array([bus_factor(kind, n) for n in ranks]) * size / rates / 1e3
        steps = ranks - 1.0
        step_us, wire = _ring(steps, wire_us, measured_us) if kind in RINGS else (0.0, 1.0)
        return _Figures(
            np.log2(nodes),
            np.log(measured_us / carried_us),
            np.log(measured_us / (step_us * steps + wire * wire_us)),
            step_us,
            wire,
        )


AXES = ("tensor", "context", "expert", "data", "shard", "copies", "expert data", "world")
FIELDS = ("bytes", "gbps", "hop_us", "axes")
LEAST = 1e-6


def read_site(given: Any, where: str) -> SiteBandwidth:
    """``[site]``: bus bandwidth in GB/s of one message by kind and number of nodes.

    ``bytes`` (default 256 MB), ``gbps.all_gather = { 2 = 185, 4 = 119 }``, ``hop_us`` (what a doubling of the
    nodes adds), ``axes`` (of parallelism that it holds for; all by default).
    """
    given = section(given, FIELDS, where)
    rates = given.get("gbps")
    if not isinstance(rates, dict) or not rates:
        raise InputError(f"{where}.gbps", "is missing", "for example gbps.all_reduce = { 2 = 185, 4 = 119 }")
    axes = given.get("axes", [])
    if not isinstance(axes, list) or any(axis not in AXES for axis in axes):
        raise InputError(f"{where}.axes", f"is {axes!r}", f"a list of {', '.join(AXES)}")
    return SiteBandwidth(
        number(given.get("bytes", 256e6), f"{where}.bytes", least=LEAST),
        {kind: _by_nodes(kind, each, f"{where}.gbps") for kind, each in rates.items()},
        hop_us=number(given.get("hop_us", 0.0), f"{where}.hop_us", least=0.0),
        axes=tuple(axes),
    )


def _by_nodes(kind: str, given: Any, where: str) -> dict[int, float]:
    if kind not in COLLECTIVE_KINDS:
        raise InputError(f"{where}.{kind}", "unknown collective", nearest(kind, COLLECTIVE_KINDS))
    if not isinstance(given, dict) or not given:
        raise InputError(
            f"{where}.{kind}", f"is {given!r}", "bandwidth by nodes, such as { 2 = 185, 4 = 119 }"
        )
    found = {}
    for nodes, rate in given.items():
        if not str(nodes).isdigit() or int(nodes) < 2:
            raise InputError(f"{where}.{kind}.{nodes}", "is not a number of nodes", "use 2 or more")
        found[int(nodes)] = number(rate, f"{where}.{kind}.{nodes}", least=LEAST)
    return found
