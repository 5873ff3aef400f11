"""A language model's training step as a job: one program for each stage of the pipeline.

The job shows one rank of every stage. The other ranks of its tensor, context and data groups do the
same at the same time, so a collective over them carries the ranks it spans and needs no program of
theirs (`Collective.spans`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from stepsight.dtypes import dtype_bytes
from stepsight.program.job import COMPUTE, Collective, Group, Job, Op
from stepsight.program.schedule import Arrival, Block, Schedule, Stage, Transfer
from stepsight.program.variants import Role
from stepsight.workload.llm.block import Pass
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.emission import GATHER, REDUCE, Emitter, update_ops
from stepsight.workload.llm.pieces import Pieces, PieceWork, Run
from stepsight.workload.llm.pipeline import (
    Event,
    Exchange,
    Item,
    Steady,
    micro_batches_listed,
    orders,
    pieces,
    steady_blocks,
    timed_exchanges,
)

LATER = (Role.WGRAD, Role.ACCUMULATE, Role.BIAS, Role.NORM_WEIGHT)
"""Kernels of a backward pass that no other stage waits for."""
RUNS = 6
"""Runs of layers into which a piece is cut where collectives of its parameters overlap its compute."""


def build(c: LanguageConfig, blocks: int | None = None) -> Job:
    """The programs of all stages."""
    return schedule(c, blocks).job()


def schedule(c: LanguageConfig, blocks: int | None = None) -> Schedule:
    """What all stages do.

    Of the micro-batches in the steady part, ``blocks`` that repeat are listed at least, and the others left
    to the period of the programs where possible; all are listed by default.
    """
    s = c.layout
    maker = Pieces(c, RUNS if s.zero == 3 or s.data * s.context > 1 else 1)
    works = [maker.work(piece) for piece in pieces(c)]
    emit = Emitter(c)
    listed, lists, steady = _listed(c, blocks)
    made = _Made()
    stages = [
        _Stage(c, emit, works, stage, listed, [event for _, event in events], made).stage(
            steady, steady.starts[stage] if steady else ()
        )
        for stage, events in enumerate(lists)
    ]
    stride = s.stride("pipeline")
    numbers = tuple(stage * stride for stage in range(s.pipeline))
    return Schedule(tuple(stages), _groups(c, emit), numbers)


def _listed(
    c: LanguageConfig, blocks: int | None
) -> tuple[int, list[list[tuple[float, Event]]], Steady | None]:
    """How many micro-batches are listed, the events of all stages, and which of them repeat."""
    s = c.layout
    special = max(1, math.ceil(s.unpaired))
    return _events(s.schedule, s.pipeline, s.micro_batches, s.virtual_stages, blocks, special)


@lru_cache(maxsize=64)
def _events(
    kind: str, stages: int, micro_batches: int, virtual: int, blocks: int | None, special: int
) -> tuple[int, list[list[tuple[float, Event]]], Steady | None]:
    """The same by what decides it; configurations of a search share it."""

    def events(listed: int) -> list[list[tuple[float, Event]]]:
        return timed_exchanges(orders(kind, stages, listed, virtual), stages * virtual)

    if blocks is not None:
        listed = micro_batches_listed(kind, stages, micro_batches, virtual, blocks)
        lists = events(listed)
        steady = steady_blocks(lists, kind, virtual, listed, micro_batches, special)
        if steady is not None:
            return listed, lists, steady
    return micro_batches, events(micro_batches), None


def _groups(c: LanguageConfig, emit: Emitter) -> dict[str, tuple[Group, ...]]:
    stages = range(c.layout.pipeline)
    groups = {axis: tuple(Group(f"{axis} {r}", (r,)) for r in stages) for axis in emit.spans}
    n = len(stages)
    if n > 1:
        groups["ends"] = (Group("ends", (0, n - 1)),)
    for r in stages if n > 1 else ():
        for way, other in (("forward", (r + 1) % n), ("backward", (r - 1) % n)):
            groups[f"{way} {r}"] = (Group(f"{way} {r}", tuple(sorted((r, other)))),)
    return groups


@dataclass(slots=True)
class _Made:
    """What stages with the same work share: blocks by all that decides them, and merged passes."""

    blocks: dict[tuple[object, ...], Block] = field(default_factory=dict)
    passes: dict[tuple[PieceWork, str], Pass] = field(default_factory=dict)
    unpaired: dict[Pass, Pass] = field(default_factory=dict)
    transfers: dict[tuple[str, int, bool], Op] = field(default_factory=dict)


class _Stage:
    """Writes one stage's events."""

    def __init__(
        self,
        c: LanguageConfig,
        emit: Emitter,
        works: list[PieceWork],
        stage: int,
        micro_batches: int,
        items: list[Event],
        made: _Made,
    ) -> None:
        self.c, self.emit, self.works, self.index, self.items = c, emit, works, stage, items
        self.micro_batches, self.made = micro_batches, made
        self.ops: list[Op] = []
        self.arrived: set[Item] = set()
        passes = [i for i in items if isinstance(i, Item) and i.kind == "B"]
        self.last = dict(zip((i.piece for i in passes), (i.micro_batch for i in passes), strict=True))
        self.arrival = self.emit.op("wait", "forward")

    def stage(self, steady: Steady | None, starts: tuple[int, ...]) -> Stage:
        """All events; ``starts``, of the blocks of the steady part, are counted in items."""
        events: list[Block | Transfer | Arrival] = []
        begins: list[int] = []
        for i, item in enumerate(self.items):
            if i in starts:
                begins.append(len(events))
            if isinstance(item, Exchange):
                events.append(self._transfer(item))
                continue
            needed = Item(item.kind, item.piece + (-1 if item.kind == "F" else 1), item.micro_batch)
            if needed in self.arrived:
                self.arrived.remove(needed)
                events.append(Arrival(self.arrival, needed, self.c.framework.host_waits))
            events.append(self._block(item))
        if len(self.items) in starts:
            begins.append(len(events))
        events.append(Block(tuple(self._end())))
        skipped, group = (steady.skipped, steady.group) if steady else (0, 1)
        return Stage(tuple(events), tuple(begins), skipped, group)

    def _end(self) -> list[Op]:
        """What follows the last pass."""
        mine = [self.works[p] for p in sorted(self.last)]
        ops: list[Op] = []
        if self._reduces and not self.c.layout.overlap_gradients and self.c.layout.zero < 2:
            for work in mine:
                for run in work.backward:
                    ops += self.emit.reduce(run)
        ops += [self.emit.join(REDUCE, "backward")] if self._reduces else []
        ops += update_ops(self.c, self.emit, mine, self.index)
        return ops + self.emit.step_work(mine)

    def _block(self, item: Item) -> Block:
        """The pass of an item; passes that do the same are one object."""
        key = (
            item.kind, self.works[item.piece], item.kind == "F" and item.micro_batch == 0,
            self._is_last(item), self._unpaired(item),
        )  # fmt: skip
        if key not in self.made.blocks:
            self.ops = []
            self._pass(item)
            self.made.blocks[key] = Block(tuple(self.ops))
        return self.made.blocks[key]

    @property
    def _reduces(self) -> bool:
        return self.c.layout.data * self.c.layout.context > 1

    @property
    def _ends_with(self) -> str:
        """The pass that completes the weights' gradients of a micro-batch."""
        return "W" if self.c.layout.schedule == "zero_bubble" else "B"

    @property
    def _unsplit(self) -> bool:
        """Backward passes are whole, because their gradients leave run by run."""
        s = self.c.layout
        return s.zero == 3 or (self._reduces and s.reduces_each_micro_batch)

    def _is_last(self, item: Item) -> bool:
        return item.kind in "BW" and self.last.get(item.piece) == item.micro_batch

    def _unpaired(self, item: Item) -> bool:
        """No other micro-batch overlaps with this one: the pipeline fills or drains."""
        at = item.micro_batch if item.kind == "F" else self.micro_batches - 1 - item.micro_batch
        return at < self.c.layout.unpaired

    def _pass(self, item: Item) -> None:
        work = self.works[item.piece]
        if item.kind == "F" and work.ends:
            self.ops += self.emit.next_micro_batch()
        runs = work.forward if item.kind == "F" else work.backward
        phase = "forward" if item.kind == "F" else "backward"
        self.ops += self._put_together(item, phase)
        s = self.c.layout
        if item.kind == "W" and self._unsplit:
            return
        updates = s.gathers_updated and s.prefetch and self.c.training.optimizer != "none"
        updated = updates and item.kind == "F" and item.micro_batch == 0
        if s.zero == 3 or updated:
            self._gathered(runs, phase, item)
        elif self._reduces and item.kind == "B" and s.reduces_each_micro_batch:
            self._reduced(runs, phase, item)
            self.ops.append(self.emit.join(REDUCE, phase))
        elif self._is_last(item) and self._reduces and s.overlap_gradients and item.kind == self._ends_with:
            self._reduced(runs, phase, item)
        else:
            self._compute(self._merged(item, runs), phase, phase, item)

    @property
    def _message_bytes(self) -> float:
        """One tensor between two stages."""
        return float(dtype_bytes(self.c.training.dtype) * self.c.tokens * self.c.model.hidden)

    def _put_together(self, item: Item, phase: str) -> list[Op]:
        """What a stage received in parts, one on each tensor rank."""
        s, end = self.c.layout, 0 if item.kind == "F" else len(self.works) - 1
        scattered = self.c.framework.scatters_messages and not s.sequence_parallel and s.tensor > 1
        if not scattered or item.kind == "W" or item.piece == end:
            return []
        gather = self.emit.collective("tensor", "all_gather", self._message_bytes)
        op = self.emit.op("c10d::all_gather", phase, collective=gather, launches=1, label="pipeline")
        return [op, self.emit.join("tensor", phase)]

    def _compute(self, work: Pass, phase: str, label: str, item: Item) -> None:
        """A pass of a micro-batch, overlapped with another one except where the pipeline fills or drains."""
        if self._unpaired(item):
            work = self.made.unpaired.setdefault(work, work.without_overlap())
        self.ops += self.emit.of(work, phase, label)

    def _merged(self, item: Item, runs: tuple[Run, ...]) -> Pass:
        """A whole piece as one pass; with zero-bubble the weights' gradients apart."""
        key = (self.works[item.piece], item.kind)
        if key not in self.made.passes:
            total = Pass()
            for run in runs:
                total += run.work
            if self.c.layout.schedule == "zero_bubble" and item.kind in "BW":
                total = split_pass(total, weights=item.kind == "W")
            self.made.passes[key] = total
        return self.made.passes[key]

    def _reduced(self, runs: tuple[Run, ...], phase: str, item: Item) -> None:
        """A backward pass whose gradients leave after each run, or all of them after the last."""
        late: list[Op] = []
        for run in runs:
            work = split_pass(run.work, weights=True) if item.kind == "W" else run.work
            self._compute(work, phase, run.label, item)
            if self.c.layout.overlap_gradients:
                self.ops += self.emit.reduce(run)
            else:
                late += self.emit.reduce(run)
        self.ops += late

    def _gathered(self, runs: tuple[Run, ...], phase: str, item: Item) -> None:
        """Parameters of the next run come while this one computes; ZeRO-3's gradients leave after it."""
        if not runs:  # a piece without layers
            return
        again = phase == "forward" or self.c.layout.reshard
        if again:  # ZeRO-1 and 2: the first piece of a step waits for the last update, the others follow it
            follows = self.c.layout.zero < 3 and item.piece != self.index
            self.ops += self.emit.gather(runs[0], phase, after=() if follows else (COMPUTE,))
        for i, run in enumerate(runs):
            if again:
                self.ops.append(self.emit.join(GATHER, phase))
                if i + 1 < len(runs) and self.c.layout.prefetch:
                    self.ops += self.emit.gather(runs[i + 1], phase)
            self._compute(run.work, phase, run.label, item)
            if again and i + 1 < len(runs) and not self.c.layout.prefetch:
                self.ops += self.emit.gather(runs[i + 1], phase)
            if phase == "backward" and self._reduces:
                self.ops += self.emit.reduce(run)
        if (
            phase == "backward" and self._reduces
        ):  # FSDP and DeepSpeed wait for them after every backward pass
            self.ops.append(self.emit.join(REDUCE, phase))

    def _transfer(self, message: Exchange) -> Transfer:
        """Activations or their gradients, to or from a neighbour."""
        c, way = self.c, "forward" if message.item.kind == "F" else "backward"
        sends = message.source == self.index
        if not sends:
            self.arrived.add(message.item)
        key = (way, message.source, sends)
        if key not in self.made.transfers:
            bytes_ = self._message_bytes
            if c.layout.sequence_parallel or c.framework.scatters_messages:
                bytes_ /= c.layout.tensor
            bytes_ *= self.emit.tensors[message.source if way == "forward" else message.target]
            stride = c.layout.stride("pipeline")
            group = f"{way} {message.source}"
            collective = Collective(
                "send_recv", bytes_, group, f"{group} {'send' if sends else 'receive'}", c.training.dtype,
                name=f"{way} activations" if way == "forward" else "gradients of activations",
                after=(COMPUTE,) if sends else (),
                spans=(message.source * stride, message.target * stride),
            )  # fmt: skip
            self.made.transfers[key] = self.emit.op(
                "c10d::send" if sends else "c10d::recv_", way, collective=collective,
                launches=2 if sends else 1, label="pipeline",
            )  # fmt: skip
        stream = f"{way} {message.source} {'send' if sends else 'receive'}"
        return Transfer(self.made.transfers[key], message.item, sends, stream)


def split_pass(work: Pass, *, weights: bool) -> Pass:
    """The part of a backward pass that may come later, or the rest of it.

    That is the weights' gradients, except those that a message runs alongside: apart from it they would leave
    it exposed.
    """
    later = Counter({k: n for k, n in work.kernels.items() if k.kind.role in LATER})
    for message, count in work.messages.items():
        for kernel in message.concurrent:
            later[kernel] -= min(count, later[kernel])
    half = work.more_launches // 2
    if weights:
        return Pass(+later, Counter(), work.kept_bytes, half)
    rest = work.kernels - later
    return Pass(rest, work.messages, work.kept_bytes, work.more_launches - half, work.host_waits)
