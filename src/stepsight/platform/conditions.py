"""What a running job finds on a platform beyond its data sheet.

Kernel models, collective models and overheads state what one launch takes by itself. A job finds a sustained
clock (`power`), the network that its cluster measured (``[site]``), factors learned from its own runs
(``[learned]``), contention and its host. `simulate.price` asks here for every job, whatever its origin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from stepsight.collectives.models import dispatched
from stepsight.collectives.roofline import group_shape, roofline
from stepsight.collectives.site import SiteBandwidth, SiteCollectives
from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.estimate import Estimate, Estimates, FloatArray
from stepsight.hardware.spec import ContentionSpec, PlatformSpec
from stepsight.kernels.families import category
from stepsight.platform.power import Draw, Draws, Power, draws, light_us
from stepsight.program.job import Copies, HostTimes, Kernel
from stepsight.records import record

if TYPE_CHECKING:
    from stepsight.collectives.models import CollectiveModels
    from stepsight.kernels.models import KernelModels

C = area("collectives")


LEAST_FACTOR, MOST_FACTOR = 0.1, 10.0
"""A learned factor beyond these says that a description is wrong, not that a machine is slow."""
PARTS: Mapping[str, str] = {
    "gemm": "gemm", "conv": "gemm", "attention": "attention", "embedding": "embedding",
}  # fmt: skip
"""Which learned factor acts on a category of kernels; on all others ``memory_bound``."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Times that each part takes as long as the models say: what runs on a platform taught about it.

    ``gemm`` (and convolutions), ``attention``, ``memory_bound`` kernels (element-wise, norms, optimizer,
    copies), ``embedding`` lookups, ``host`` work, collectives inside a node (``link``) and over two nodes
    (``network``), with ``network_per_doubling`` for every doubling of the nodes after that and
    ``network_tensor`` for tensor-parallel groups over nodes; ``memory``: what the allocator holds. No factor
    takes a kernel or a collective below the speed of light.
    """

    gemm: float = 1.0
    attention: float = 1.0
    memory_bound: float = 1.0
    embedding: float = 1.0
    host: float = 1.0
    link: float = 1.0
    network: float = 1.0
    network_per_doubling: float = 1.0
    network_tensor: float = 1.0
    memory: float = 1.0

    @property
    def changed(self) -> tuple[str, ...]:
        """The parts that were learned."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != 1.0)


def network_weights(nodes: float, axis: str) -> dict[str, float]:
    """How the logarithm of a collective's time depends on the parts, by the nodes that its group spans and
    the axis of parallelism that it belongs to."""
    if nodes <= 1:
        return {"link": 1.0}
    tensor = {"network_tensor": 1.0} if axis == "tensor" else {}
    return {"network": 1.0, "network_per_doubling": math.log2(nodes) - 1.0} | tensor


def part_of(category: str) -> str:
    """The part that kernels of a category belong to."""
    return PARTS.get(category, "memory_bound")


def collective_factor(factors: Mapping[str, float], nodes: float, axis: str) -> float:
    """The factor of a collective of an axis of parallelism whose group spans this many nodes."""
    return float(math.prod(factors.get(part, 1.0) ** n for part, n in network_weights(nodes, axis).items()))


NOTHING_LEARNED = Learned()


def read_learned(given: object, where: str) -> Learned:
    """``[learned]`` of a platform file: a factor per part, one where it is left out."""
    found = record(Learned, given, where)
    for name in found.changed:
        value = getattr(found, name)
        if not LEAST_FACTOR <= value <= MOST_FACTOR:
            raise InputError(
                f"{where}.{name}", f"is {value:g}", f"give a factor from {LEAST_FACTOR:g} to {MOST_FACTOR:g}"
            )
    return found


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel at boost clock, and what it draws."""

    estimate: Estimate
    draw: Draw


@dataclass(slots=True)
class Conditions:
    """Prices kernels, collectives and host work of jobs on one platform.

    Distinct kernels and messages are asked of the models once: configurations of one model share most.
    """

    spec: PlatformSpec
    kernel_models: KernelModels
    collective_models: CollectiveModels
    learned: Learned = NOTHING_LEARNED
    site: SiteBandwidth | None = None
    _kernels: dict[Kernel, KernelTime] = field(default_factory=dict, repr=False)
    _collectives: dict[tuple[object, ...], Estimate] = field(default_factory=dict, repr=False)
    _of_axis: dict[str, CollectiveModels | SiteCollectives] = field(default_factory=dict, repr=False)

    @property
    def power(self) -> Power | None:
        """The board's power; None where nobody states it, and where the host itself computes."""
        return None if self.spec.host.synchronous else Power.of(self.spec.gpu)

    def kernels(self, kernels: Sequence[Kernel]) -> tuple[Estimates, Draws]:
        """Times at boost clock with learned factors, and what the kernels draw."""
        found = self.kernel_models.estimate(kernels)
        if self.spec.host.synchronous:
            time_us, none = self._with_learned(kernels, found.time_us), np.zeros(len(kernels))
            return replace(found, time_us=time_us), Draws(time_us, none, none, none)
        drawn = draws(kernels, found.time_us, self.spec.gpu)
        if power := self.power:
            drawn = power.at_boost(drawn)
        time_us = self._with_learned(kernels, drawn.time_us)
        return replace(found, time_us=time_us), drawn.scaled(time_us, drawn.time_us)

    def _with_learned(self, kernels: Sequence[Kernel], time_us: FloatArray) -> FloatArray:
        if self.learned is NOTHING_LEARNED or not len(time_us):
            return time_us
        factors = np.array([getattr(self.learned, part_of(category(k.family))) for k in kernels])
        if (factors == 1.0).all():
            return time_us
        light = light_us(kernels, self.spec.gpu)
        return np.where(factors == 1.0, time_us, np.maximum(time_us * factors, np.minimum(time_us, light)))

    def known_kernels(self, kernels: Iterable[Kernel]) -> Mapping[Kernel, KernelTime]:
        """The same for distinct kernels (and all asked for before)."""
        fresh = [k for k in dict.fromkeys(kernels) if k not in self._kernels]
        if fresh:
            found, draw = self.kernels(fresh)
            parts = zip(draw.time_us, draw.clock_bound_us, draw.flop_j, draw.byte_j, strict=True)
            for i, (kernel, each) in enumerate(zip(fresh, parts, strict=True)):
                self._kernels[kernel] = KernelTime(found[i], Draw(*map(float, each)))
        return self._kernels

    def collective(
        self, axis: str, kind: str, bytes_: float, ranks: tuple[int, ...], copies: Copies | None = None
    ) -> Estimate:
        """A collective over the ranks of an axis of parallelism, or of another process group."""
        by_axis = self.site is not None or self.learned.network_tensor != 1.0
        key = (axis if by_axis else "", kind, bytes_, ranks, copies)
        if key not in self._collectives:
            models = self.collectives(axis)
            found = (
                models.estimate(kind, [bytes_], ranks)[0]
                if copies is None
                else dispatched(models, bytes_, copies, ranks)
            )
            self._collectives[key] = self._learned_collective(axis, found, kind, bytes_, ranks)
        return self._collectives[key]

    def alltoallv(self, send_bytes: FloatArray, ranks: tuple[int, ...]) -> tuple[FloatArray, Estimate]:
        """When each rank is done with an all_to_allv, and the whole of it."""
        finish, found = self.collective_models.estimate_alltoallv(send_bytes, ranks)
        if len(ranks) == 1 or found.time_us <= 0:
            return finish, found
        balanced = float(send_bytes.sum(axis=1).max())
        plain = self.collective_models.estimate("all_to_all", [balanced], ranks)[0].time_us
        here = self.collective("world", "all_to_all", balanced, tuple(ranks)).time_us
        factor = here / plain if plain > 0 else 1.0
        return finish * factor, replace(found, time_us=found.time_us * factor)

    def collectives(self, axis: str) -> CollectiveModels | SiteCollectives:
        """The models of an axis, as far as the cluster measured it."""
        if axis not in self._of_axis:
            table = self.site.of(axis) if self.site else None
            models = self.collective_models
            self._of_axis[axis] = models if table is None else SiteCollectives(models, table)
        return self._of_axis[axis]

    def _learned_collective(
        self, axis: str, found: Estimate, kind: str, bytes_: float, ranks: Sequence[int]
    ) -> Estimate:
        shape = group_shape(ranks, self.spec)
        factor = collective_factor(asdict(self.learned), shape.nodes, axis)
        if factor == 1.0 or shape.ranks == 1:
            return found
        name = "all_reduce" if kind == "barrier" else kind
        light = float(roofline(name, shape, self.spec).us_per_byte * C.LINK_EFFICIENCY * bytes_)
        return replace(found, time_us=max(found.time_us * factor, min(found.time_us, light)))

    def host(self, times: HostTimes) -> HostTimes:
        """An operator's host times with what was learned about this host."""
        f = self.learned.host
        if f == 1.0:
            return times
        return HostTimes(f * times.t1, f * times.t2, f * times.t3, f * times.t4, f * times.t5)


def check_axes(site: SiteBandwidth | None, groups: Iterable[str], where: str) -> None:
    """Refuses a ``[site]`` whose axes a job does not have: its figures would have no effect."""
    if site is None:
        return
    asked, named = set(site.axes), set(groups)
    if site.every_axis or asked & named:
        return
    raise InputError(
        f"{where}: site.axes",
        f"names {', '.join(sorted(asked))}, and the job has {', '.join(sorted(named))}",
        "leave axes out: the figures then hold for every group over nodes",
    )  # fmt: skip


def without_effect(learned: Learned, families: Iterable[str]) -> tuple[str, ...]:
    """Notes on learned factors of kernels that a job lacks: one file of factors serves several jobs."""
    here = {part_of(category(family)) for family in families}
    absent = [p for p in learned.changed if p in {*PARTS.values(), "memory_bound"} - here]
    return (f"learned {', '.join(absent)}: no effect, the job has no such kernels",) if absent else ()


MEASURED_LINKS = ("nvlink_mesh", "nvswitch")


def contention_of(platform: PlatformSpec) -> ContentionSpec:
    """The slowdown factors of a platform, with where they come from."""
    if platform.host.synchronous:
        return ContentionSpec(source="nothing runs concurrently here")
    streams = ContentionSpec(
        compute_beside_compute=C.COMPUTE_BESIDE_COMPUTE, source="profiler traces of DLRM training on V100"
    )
    if platform.ranks == 1:
        return streams
    measured = "profiler traces of DLRM and CNN training on V100, A100 and H100 with NVLink"
    if platform.link.kind not in MEASURED_LINKS:
        measured = f"assumed as on NVLink: {measured}"
    return replace(
        streams,
        compute_under_comm=C.COMPUTE_UNDER_COMM,
        comm_under_compute=C.COMM_UNDER_COMPUTE,
        source=measured,
    )
