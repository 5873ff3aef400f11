"""A pass's time on a platform: kernels by category, messages by axis, and the host's share.

Kernels, collectives and host gaps come from the same models that price any job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from stepsight.kernels.families import category
from stepsight.overheads.frameworks import framework_times, profile_of
from stepsight.platform.load import Platform
from stepsight.platform.power import NO_DRAW, Draw
from stepsight.prediction.llm.tally import Tally
from stepsight.program.job import Copies, Kernel
from stepsight.simulate.price import COMMUNICATION
from stepsight.workload.llm.blocks import Blocks
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.work import Message, Pass

HOST = "host"
COMMUNICATION_AXES = (
    "tensor", "context", "expert", "data", "shard", "copies", "expert data", "pipeline", "world",
)  # fmt: skip
"""Axes whose messages together are the category communication."""


MOST_KNOWN = 8192
"""Passes that are remembered at most: a search over a thousand configurations has a few thousand."""
EXCHANGE_SMS = 20
"""Multiprocessors of a GPU that exchanges of tokens take where they run alongside all compute: 20 of an
H800's 132 (DeepSeek-AI 2024, DeepSeek-V3 technical report, 3.2.2)."""


@dataclass(frozen=True, slots=True)
class Part:
    """A category's or an axis's time in µs at boost clock, its spread weighted by time, and of the time what
    goes with the clock."""

    time_us: float = 0.0
    spread_us: float = 0.0
    clock_bound_us: float = 0.0

    def plus(self, time_us: float, spread: float, clock_bound_us: float = 0.0) -> Part:
        return Part(
            self.time_us + time_us, self.spread_us + time_us * spread, self.clock_bound_us + clock_bound_us
        )


@dataclass(frozen=True, slots=True)
class Overlap:
    """A message that runs alongside some kernels: the times of both alone, by axis and by category;
    ``hidden``: concurrent all of a pass's kernels (`Message`). ``slowdown``: of kernels that leave
    multiprocessors to it."""

    axis: str
    message: Part
    concurrent: Mapping[str, Part]
    hidden: bool = False
    slowdown: float = 1.0

    def beside_us(self, scale: Scale) -> float:
        return sum(scale.of(name, part) for name, part in self.concurrent.items())


@dataclass(frozen=True, slots=True)
class PassTime:
    """Compute by category, messages that compute waits for by axis, and overlapping pairs."""

    compute: Mapping[str, Part] = field(default_factory=dict)
    waited: Mapping[str, Part] = field(default_factory=dict)
    overlaps: tuple[Overlap, ...] = ()
    host_us: float = 0.0
    draw: Draw = NO_DRAW

    def device_us(self, scale: Scale) -> float:
        """The device's time for the pass, with some parts scaled."""
        total = sum(scale.of(name, part) for name, part in self.compute.items())
        total += sum(scale.of(axis, part) for axis, part in self.waited.items())
        return total + sum(overlapped(o, scale)[0] for o in self.overlaps)


@dataclass(frozen=True, slots=True)
class Scale:
    """One question: a category or axis slower by its spread, or free. Slowdowns of overlapping work.

    ``factors``: categories and axes that take this many times as long in every answer. ``clock``: share of
    the boost clock that the GPUs keep.
    """

    changed: str = ""
    how: str = ""
    compute_under_comm: float = 1.0
    comm_under_compute: float = 1.0
    factors: Mapping[str, float] = field(default_factory=dict)
    clock: float = 1.0

    def of(self, name: str, part: Part) -> float:
        factor = self.factors.get(name, 1.0)
        time_us = part.time_us + part.clock_bound_us * (1 / self.clock - 1)
        if name != self.changed and not (self.changed == COMMUNICATION and name in COMMUNICATION_AXES):
            return factor * time_us
        return 0.0 if self.how == "free" else factor * (time_us + part.spread_us)

    def asking(self, name: str, how: str) -> Scale:
        return replace(self, changed=name, how=how)


def overlapped(o: Overlap, scale: Scale) -> tuple[float, float]:
    """How long a message and the kernels concurrent it take together, and how much of that only the
    message."""
    message, concurrent = scale.of(o.axis, o.message), o.beside_us(scale)
    both = min(message, concurrent)
    concurrent += both * (1 - 1 / max(scale.compute_under_comm, o.slowdown))
    message += both * (1 - 1 / scale.comm_under_compute)
    return max(message, concurrent), max(0.0, message - concurrent)


@dataclass(slots=True)
class PassCache:
    """Passes priced before on one platform: the configurations of a search share most of theirs.

    A pass is known as the object it is, which is kept here, and by what else its time depends on.
    """

    _known: dict[tuple[object, ...], tuple[Pass, PassTime, Tally]] = field(default_factory=dict, repr=False)

    def get(self, key: tuple[object, ...]) -> tuple[Pass, PassTime, Tally] | None:
        return self._known.get(key)

    def keep(self, key: tuple[object, ...], work: Pass, time: PassTime, tally: Tally) -> None:
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[key] = (work, time, tally)


class Pricer:
    """Prices passes of one configuration on one platform."""

    def __init__(self, c: LanguageConfig, platform: Platform, known: PassCache | None = None) -> None:
        self.c, self.platform = c, platform
        self.blocks = Blocks(c)
        self.tally = Tally()
        self._known = known or PassCache()
        self._counted: set[tuple[object, ...]] = set()
        self._host: dict[str, float] = {}

    def price(self, work: Pass, phase: str) -> PassTime:
        """A pass's time; what it comes from counts once, however many stages run it."""
        key = self._key(work, phase)
        found = self._known.get(key)
        if found is None:
            before, self.tally = self.tally, Tally()
            found = (work, self._price(work, phase), self.tally)
            self.tally = before
            self._known.keep(key, *found)
        if key not in self._counted:
            self._counted.add(key)
            self.tally.add(found[2])
        return found[1]

    def _key(self, work: Pass, phase: str) -> tuple[object, ...]:
        """The pass, and what of the layout decides how long it takes: the ranks of its groups. All else is
        in the pass itself."""
        groups = tuple(self.blocks.spans[axis] for axis in {m.axis: None for m in work.messages})
        return id(work), phase, groups

    def kernels(self, kernels: Mapping[Kernel, int]) -> dict[str, Part]:
        """Kernels one after the other, by category."""
        known = self.platform.conditions.known_kernels(kernels)
        gap_us = self.platform.spec.gpu.kernel_gap_us
        parts: dict[str, Part] = {}
        for kernel, count in kernels.items():
            if count <= 0:
                continue
            e, draw = known[kernel].estimate, known[kernel].draw
            name = category(kernel.family)
            parts[name] = parts.get(name, Part()).plus(
                count * (e.time_us + gap_us), e.spread, count * draw.clock_bound_us
            )
            self.tally.count(e, count * e.time_us, kernel.label)
        return parts

    def drawn(self, kernels: Mapping[Kernel, int]) -> Draw:
        """What kernels draw, one after the other."""
        known, total = self.platform.conditions.known_kernels(kernels), Draw()
        for kernel, count in kernels.items():
            total = total.plus(known[kernel].draw, count)
        return total

    def collective(
        self,
        axis: str,
        kind: str,
        bytes_: float,
        count: int = 1,
        spans: tuple[int, ...] = (),
        copies: Copies | None = None,
    ) -> Part:
        """This many identical collectives over an axis, as a part."""
        ranks = spans or self.blocks.spans[axis]
        e = self.platform.conditions.collective(axis, kind, bytes_, tuple(ranks), copies)
        self.tally.count(e, count * e.time_us, f"{axis} {kind}")
        return Part().plus(count * e.time_us, e.spread)

    def messages(self, messages: Iterable[tuple[str, str, float, int]]) -> Part:
        """Collectives (axis, kind, bytes, how many) one after the other."""
        parts = [self.collective(*m) for m in messages]
        return Part(sum(p.time_us for p in parts), sum(p.spread_us for p in parts))

    def host_us(self, phase: str, launches: int) -> float:
        """What the framework's host work for this many launches takes."""
        if phase not in self._host:
            times = framework_times(self.platform.overheads, self.c.host_profile, phase, 1000, 0)
            self._host[phase] = self.platform.conditions.host(times).t5 / 1000
        return launches * self._host[phase]

    def micro_batch_us(self) -> float:
        """The host's time for a micro-batch concurrent its launches (`HostProfile`)."""
        profile = profile_of(self.c.host_profile)
        return self.host_us("forward", 1) * profile.micro_batch_us / profile.forward_us

    def _price(self, work: Pass, phase: str) -> PassTime:
        alone = dict(work.kernels)
        overlaps: list[Overlap] = []
        waited: dict[str, Part] = {}
        hidden: dict[str, Part] = {}
        for message, count in work.messages.items():
            part = self.collective(message.axis, message.kind, message.bytes, count, copies=message.copies)
            part = self._hopped(part, message, count)
            concurrent = self._beside(message, count, alone)
            if message.hidden:
                hidden = added([hidden, {message.axis: part}])
            elif not concurrent:
                waited = added([waited, {message.axis: part}])
            else:
                overlaps.append(Overlap(message.axis, part, self.kernels(concurrent)))
        compute = self.kernels(alone)
        for axis, part in hidden.items():  # the first of them has all the compute there is
            overlaps.append(Overlap(axis, part, compute, True, self._exchange_slowdown()))
            compute = {}
        launches = 1 if self.c.training.cuda_graphs else work.launches
        host_us = self.host_us(phase, launches)
        return PassTime(compute, waited, tuple(overlaps), host_us, self.drawn(work.kernels))

    def _exchange_slowdown(self) -> float:
        """Of compute that leaves multiprocessors to exchanges."""
        sms = self.platform.spec.gpu.sms
        return sms / (sms - EXCHANGE_SMS) if sms > 2 * EXCHANGE_SMS else 1.0

    def _hopped(self, part: Part, message: Message, count: int) -> Part:
        """A message inside a layer waits for each rank's host (`HostProfile`)."""
        skew = profile_of(self.c.host_profile).skew_us
        return part.plus(count * skew * (len(self.blocks.spans[message.axis]) - 1), 0.3) if skew else part

    def _beside(self, message: Message, count: int, alone: dict[Kernel, int]) -> dict[Kernel, int]:
        """Takes the kernels that run alongside a message out of those that run alone."""
        taken: dict[Kernel, int] = {}
        for kernel in message.concurrent:
            n = min(count, alone.get(kernel, 0))
            if n:
                alone[kernel] -= n
                taken[kernel] = taken.get(kernel, 0) + n
        return taken


def added(parts: Iterable[Mapping[str, Part]]) -> dict[str, Part]:
    """Parts of the same name together."""
    total: dict[str, Part] = {}
    for one in parts:
        for name, part in one.items():
            old = total.get(name, Part())
            total[name] = Part(
                old.time_us + part.time_us,
                old.spread_us + part.spread_us,
                old.clock_bound_us + part.clock_bound_us,
            )
    return total
