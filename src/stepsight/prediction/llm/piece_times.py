"""The passes of one piece of a stage under a scale: how long they take, and where that goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stepsight.platform.power import Draw
from stepsight.prediction.llm.passes import Overlap, Part, PassTime, Pricer, Scale, added, overlapped
from stepsight.workload.llm.blocks import gather_messages, gradient_messages
from stepsight.workload.llm.build import split_pass
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.stages import PieceWork

SHARD = "shard"


@dataclass(slots=True)
class StageParts:
    """Where one stage's step goes, in µs: compute by category, exposed communication by axis, the host's
    delays, and waiting for other stages (the bubble)."""

    compute: dict[str, float] = field(default_factory=dict)
    exposed: dict[str, float] = field(default_factory=dict)
    communication: dict[str, float] = field(default_factory=dict)
    host_bound_us: float = 0.0
    bubble_us: float = 0.0
    host_us: float = 0.0


@dataclass(slots=True)
class Durations:
    """A piece's passes under one scale: their times, and where they go: so much of each of ``parts``."""

    times: dict[str, float]
    parts: list[tuple[PassTime, float]]
    scale: Scale
    exposed_gathers: float
    host_late: float
    host_us: Mapping[str, float]
    device_us: Mapping[str, float]
    gathers: float

    def of(self, kind: str) -> float:
        return self.times[kind]

    def add_to(self, parts: StageParts, times: int) -> None:
        for one, share in self.parts:
            self._add(one, parts, share * times)
        if self.gathers:
            add_exposed(parts, SHARD, times * self.exposed_gathers, times * self.gathers)
        parts.host_bound_us += times * self.host_late
        parts.host_us += times * sum(self.host_us.values())

    def _add(self, one: PassTime, parts: StageParts, times: float) -> None:
        scale = self.scale
        for name, part in one.compute.items():
            parts.compute[name] = parts.compute.get(name, 0.0) + times * scale.of(name, part)
        for axis, part in one.waited.items():
            add_exposed(parts, axis, times * scale.of(axis, part), times * scale.of(axis, part))
        for o in one.overlaps:
            both, only = overlapped(o, scale)
            longer = (both - only) / (o.beside_us(scale) or 1.0)
            for name, part in o.concurrent.items():
                took = times * longer * scale.of(name, part)
                parts.compute[name] = parts.compute.get(name, 0.0) + took
            add_exposed(parts, o.axis, times * only, times * scale.of(o.axis, o.message))


def add_exposed(parts: StageParts, axis: str, exposed: float, all_of_it: float) -> None:
    parts.exposed[axis] = parts.exposed.get(axis, 0.0) + exposed
    parts.communication[axis] = parts.communication.get(axis, 0.0) + all_of_it


class PieceTimes:
    """A piece's priced passes."""

    def __init__(self, c: LanguageConfig, work: PieceWork, pricer: Pricer, *, split: bool) -> None:
        self.c, self.split = c, split
        self.runs_forward = tuple(pricer.price(run.work, "forward") for run in work.forward)
        self.runs_backward = tuple(pricer.price(run.work, "backward") for run in work.backward)
        self.forward, self.backward = joined(self.runs_forward), joined(self.runs_backward)
        self.fetched_us = pricer.micro_batch_us() if work.ends else 0.0
        self.forward = replace(self.forward, host_us=self.forward.host_us + self.fetched_us)
        self.inputs: PassTime | None = None
        if split:
            parts = [split_pass(run.work, weights=False) for run in work.backward]
            self.inputs = joined(tuple(pricer.price(part, "backward") for part in parts))
        self.pair = paired(self.forward, self.backward)
        self.unpaired = (
            {"F": without_overlap(self.forward), "B": without_overlap(self.backward)} if self.pair else {}
        )
        self.gathers: list[Part] = []
        self.reductions: list[Part] = []
        self.updated: list[Part] = []
        s = c.layout
        if s.data * s.context > 1 and s.reduces_each_micro_batch:
            self.reductions = [pricer.messages(gradient_messages(c, run)) for run in work.backward]
        if s.sharded_over > 1 and s.zero == 3:
            self.gathers = [pricer.messages(gather_messages(c, run)) for run in work.forward]
        if s.gathers_updated and s.prefetch and c.training.optimizer != "none":
            self.updated = [pricer.messages(gather_messages(c, run)) for run in work.forward]

    def updated_us(self, scale: Scale) -> tuple[float, float]:
        """ZeRO-1 and 2: what the first forward pass waits for parameters of the last update that are gathered
        concurrent it, and how long the gathers take."""
        return self._exposed(self.runs_forward, self.updated, [], scale) if self.updated else (0.0, 0.0)

    def durations(self, scale: Scale, host: float) -> Durations:
        """Both passes: the device's time, or the host's where that is longer.

        A host that never waits for the device evens both passes out.
        """
        passes = {"F": self.forward, "B": self.backward}
        device = {kind: one.device_us(scale) for kind, one in passes.items()}
        parts = [(one, 1.0) for one in passes.values()]
        if self.pair is not None:
            alone = self.c.layout.unpaired / self.c.layout.micro_batches
            shorter = (1 - alone) * self.pair.device_us(scale) / (sum(device.values()) or 1.0)
            device = {k: shorter * us + alone * self.unpaired[k].device_us(scale) for k, us in device.items()}
            parts = [(self.pair, 1 - alone), *((one, alone) for one in self.unpaired.values())]
        exposed = dict.fromkeys(passes, 0.0)
        total_gathers = 0.0
        if self.reductions:
            exposed["F"], total_gathers = self._exposed(self.runs_forward, self.gathers, [], scale)
            again = self.gathers[::-1] if self.c.layout.reshard else []
            exposed["B"], more = self._exposed(self.runs_backward, again, self.reductions, scale)
            if self.c.layout.zero < 3 and not self.c.layout.overlap_gradients:
                exposed["B"] = more
            total_gathers += more
        busy = {kind: device[kind] + exposed[kind] for kind in passes}
        hosts = {kind: one.host_us * host for kind, one in passes.items()}
        if self.c.framework.host_waits and self.c.layout.pipeline > 1:
            late = {kind: host_delay_us(hosts[kind], busy[kind]) for kind in passes}
        else:
            behind = host_delay_us(sum(hosts.values()), sum(busy.values()))
            late = {kind: behind * hosts[kind] / (sum(hosts.values()) or 1.0) for kind in passes}
        times = {kind: busy[kind] + late[kind] for kind in passes}
        if self.inputs is not None:  # what the rest of a backward pass takes longer for the weights
            share = self.inputs.device_us(scale) / (self.backward.device_us(scale) or 1.0)
            times |= {"B": share * times["B"], "W": (1 - share) * times["B"]}
        return Durations(
            times,
            parts,
            scale,
            sum(exposed.values()),
            sum(late.values()),
            hosts,
            busy,
            total_gathers,
        )

    def _exposed(
        self, runs: tuple[PassTime, ...], gathers: list[Part], reductions: list[Part], scale: Scale
    ) -> tuple[float, float]:
        """Gathers ahead of each run and reductions after it, on one link; what compute waits for. The next
        micro-batch begins when all are through, as in FSDP and DeepSpeed."""
        compute = busy = 0.0
        link = ready = scale.of(SHARD, gathers[0]) if gathers else 0.0
        for i, run in enumerate(runs):
            begin, took = max(compute, ready), run.device_us(scale)
            compute, busy = begin + took, busy + took
            if i + 1 < len(
                gathers
            ):  # issued when this run begins, or where nothing is prefetched when it ends
                issued = begin if self.c.layout.prefetch else compute
                link = ready = max(link, issued) + scale.of(SHARD, gathers[i + 1])
            if reductions:
                link = max(link, compute) + scale.of(SHARD, reductions[i])
        total = sum(scale.of(SHARD, p) for p in (*gathers, *reductions))
        return max(compute, link) - busy, total


def host_delay_us(host_us: float, busy_us: float) -> float:
    """How much longer a pass takes than its device work because its host launches more slowly."""
    return max(0.0, host_us - busy_us)


def joined(times: tuple[PassTime, ...]) -> PassTime:
    overlaps: list[Overlap] = [o for one in times for o in one.overlaps]
    return PassTime(
        added(one.compute for one in times),
        added(one.waited for one in times),
        tuple(overlaps),
        sum(one.host_us for one in times),
        drawn(times),
    )


def drawn(times: tuple[PassTime, ...]) -> Draw:
    """What passes draw together."""
    total = Draw()
    for one in times:
        total = total.plus(one.draw)
    return total


def paired(forward: PassTime, backward: PassTime) -> PassTime | None:
    """Both passes where messages run alongside another micro-batch's compute: forward ones during its
    backward pass and the other way round, so that all of both hides all of them. None where no message does
    so."""
    both = joined((forward, backward))
    hidden = [o for o in both.overlaps if o.hidden]
    if not hidden:
        return None
    axes = dict.fromkeys(o.axis for o in hidden)
    messages = added({o.axis: o.message} for o in hidden)
    compute = [added([both.compute, *(o.concurrent for o in hidden)]), *[dict[str, Part]()] * (len(axes) - 1)]
    together = [
        Overlap(axis, messages[axis], concurrent, True, hidden[0].slowdown)
        for axis, concurrent in zip(axes, compute, strict=True)
    ]
    rest = (o for o in both.overlaps if not o.hidden)
    return replace(both, compute={}, overlaps=(*rest, *together))


def without_overlap(one: PassTime) -> PassTime:
    """A pass that no other micro-batch runs alongside: compute waits for what would be hidden."""
    hidden = [o for o in one.overlaps if o.hidden]
    return replace(
        one,
        compute=added([one.compute, *(o.concurrent for o in hidden)]),
        waited=added([one.waited, *({o.axis: o.message} for o in hidden)]),
        overlaps=tuple(o for o in one.overlaps if not o.hidden),
    )
