"""Records of one rank → its RankProgram: process groups by their role, calls lowered to kernels, waits.

A program that all ranks share names "the tensor group", not the ranks in it. Every rank makes all groups, so
one rank's list shows them: groups of one size that do not overlap and were made under one description are one
family.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stepsight.capturing.calls import (
    CallRecord,
    CollectiveRecord,
    HostOperator,
    StepRecords,
    SyncRecord,
    WaitRecord,
)
from stepsight.capturing.request import Assumptions
from stepsight.program.aten.call import AtenCall, Lowered, Precision
from stepsight.program.aten.table import lower
from stepsight.program.job import COMM, COMPUTE, HOST, Call, Collective, Group, Kernel, Op, RankProgram, Wait
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import Lookup, TableLookup

WORLD = "world"


@dataclass(slots=True)
class Family:
    """Disjoint groups that play one role."""

    name: str
    description: str
    sets: list[tuple[int, ...]] = field(default_factory=list)

    def of(self, rank: int) -> tuple[int, ...] | None:
        return next((ranks for ranks in self.sets if rank in ranks), None)

    def coordinate(self, rank: int) -> int:
        """Where a rank stands in its group; -1 outside."""
        ranks = self.of(rank)
        return ranks.index(rank) if ranks else -1


def families(made: Iterable[tuple[str, tuple[int, ...]]], world: int) -> list[Family]:
    """All groups but the world's, sorted into families in the order they were made."""
    found: list[Family] = []
    for description, ranks in made:
        if len(ranks) == world or any(ranks in family.sets for family in found):
            continue
        home = next((f for f in found if _belongs(f, description, ranks)), None)
        if home is None:
            home = Family(_name(description, found), description)
            found.append(home)
        home.sets.append(ranks)
    for family in found:
        _complete(family, world)
    return found


def _belongs(family: Family, description: str, ranks: tuple[int, ...]) -> bool:
    taken = {r for group in family.sets for r in group}
    return family.description == description and len(family.sets[0]) == len(ranks) and not taken & set(ranks)


def _name(description: str, found: list[Family]) -> str:
    plain = description.removeprefix("mesh_") if description not in ("", "undefined", "None") else "group"
    taken = {f.name for f in found} | {WORLD}
    if plain not in taken:
        return plain
    return next(f"{plain} {i}" for i in range(1, len(found) + 3) if f"{plain} {i}" not in taken)


def _complete(family: Family, world: int) -> None:
    """Ranks that this process made no group for get one like the first, moved along."""
    first = family.sets[0]
    missing = sorted(set(range(world)) - {r for group in family.sets for r in group})
    while missing:
        moved = tuple(r - first[0] + missing[0] for r in first)
        if not set(moved) <= set(missing):
            return
        family.sets.append(moved)
        missing = [r for r in missing if r not in moved]


def groups_of(found: Iterable[Family], world: int) -> dict[str, tuple[Group, ...]]:
    """The job's groups: the world, and every family."""
    groups: dict[str, tuple[Group, ...]] = {WORLD: (Group(WORLD, tuple(range(world))),)}
    for family in found:
        groups[family.name] = tuple(Group(f"{family.name} {i}", ranks) for i, ranks in enumerate(family.sets))
    return groups


_BAGS = ("_embedding_bag", "_embedding_bag_forward_only")


@dataclass(frozen=True, slots=True)
class Lowering:
    """Call it with a call."""

    precision: Precision
    assumptions: Assumptions

    def __call__(self, call: AtenCall) -> Lowered:
        if call.name in _BAGS:
            return Lowered((self._bag(call),))
        if call.name.startswith("_embedding_bag") and call.name.endswith("backward"):
            return self._bag_backward(call)
        return lower(call, self.precision)

    def _bag(self, call: AtenCall) -> Kernel:
        weight, indices, offsets = (call.arguments[n] for n in ("weight", "indices", "offsets"))
        closing = bool(call.get("include_last_offset", False))
        batch = max(offsets.elements - closing, 1)
        spread = self._rows()
        table = TableLookup(
            weight.shape[0], weight.shape[1], batch, indices.elements / batch, spread, weight.dtype
        )
        return Kernel("embedding", dtype="fp32", operator="lookup", lookup=Lookup((table,), "none", False))

    def _rows(self) -> IndexDistribution:
        zipf = self.assumptions.zipf
        return IndexDistribution.zipf(zipf) if zipf else IndexDistribution.uniform()

    def _bag_backward(self, call: AtenCall) -> Lowered:
        gradient, indices = call.arguments["grad"], call.arguments["indices"]
        rows = call.get("num_weights", 1)
        count = indices.elements
        spread = Kernel.of("scatter", gradient.dtype, rows=count, cols=gradient.shape[-1], table_rows=rows)
        return Lowered((Kernel.of("sort", "int64", elements=max(count, 1)), spread))


Lower = Callable[[AtenCall], Lowered]

OPERATORS = {
    "all_reduce": "c10d::allreduce_", "all_to_all": "c10d::alltoall_base_",
    "all_to_allv": "c10d::alltoall_base_",
    "all_gather": "c10d::_allgather_base_", "reduce_scatter": "c10d::_reduce_scatter_base_",
    "broadcast": "c10d::broadcast_", "barrier": "c10d::barrier", "send_recv": "c10d::send",
    "reduce": "c10d::reduce_",
}  # fmt: skip
"""The host operator of a collective, as a profiler names it."""
_BACKWARD = ("autograd::", "torch.distributed.ddp", "torch::autograd")


@dataclass(slots=True)
class _Open:
    """The host operator that records are being gathered into."""

    name: str
    key: tuple[int, int] | int
    stream: str
    phase: str
    waits: tuple[Wait, ...]
    shapes: tuple[tuple[int, ...], ...]
    cuda_graph: bool = False
    kernels: list[Kernel] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


class ProgramBuilder:
    """Walks the records in order; ``guessed`` counts calls whose kernels are a generic pass."""

    def __init__(self, rank: int, world: int, found: Sequence[Family], lower: Lower) -> None:
        self.rank, self.world, self.families, self.lower = rank, world, found, lower
        self.guessed: Counter[str] = Counter()
        self.message_groups: dict[str, tuple[Family, int, int]] = {}
        self.ops: list[Op] = []
        self._open: _Open | None = None
        self._pending: list[Wait] = []
        self._tails: dict[str, set[int]] = {}
        self._events: dict[int, frozenset[int]] = {}
        self._started: dict[int, int] = {}
        self._in_flight: dict[int, int] = {}
        self._streams: dict[int, str] = {0: COMPUTE}
        self._silent: list[HostOperator] = []
        self._phase = "forward"

    def build(self, step: StepRecords) -> RankProgram:
        self._silent = sorted(step.silent, key=lambda op: op.start_ns, reverse=True)
        for record in step.records:
            if isinstance(record, CallRecord):
                self._call(record, step.operators.get(record.mark))
            elif isinstance(record, CollectiveRecord):
                self._collective(record, step.operators.get(record.mark))
            elif isinstance(record, WaitRecord):
                self._wait(record)
            else:
                self._sync(record)
        self._flush_silent(float("inf"))
        self._close()
        if self._pending:
            self.ops.append(Op("cudaStreamWaitEvent", waits=self._take_pending(), phase=self._phase))
        return RankProgram(tuple(self.ops), f"rank {self.rank}")

    # Calls

    def _call(self, record: CallRecord, owner: HostOperator | None) -> None:
        if owner is not None:
            self._flush_silent(owner.start_ns)
        call, stream = record.call, self._stream(record.stream)
        name = owner.name if owner else f"{call.namespace}::{call.name}"
        self._phase = _phase(name, call.node)
        lowered = self.lower(call) if record.kernels is None else Lowered(record.kernels)
        if lowered.guessed:
            self.guessed[f"{call.namespace}::{call.name}"] += 1
        if lowered.kernels:
            self._wait_for_data(stream, (t.storage for t in call.inputs))
        key = (owner.thread, owner.start_ns) if owner else -record.mark
        if self._open is None or self._open.key != key or self._open.stream != stream or self._pending:
            self._close()
            shapes = tuple(t.shape for t in call.inputs)
            replayed = owner is not None and owner.cuda_graph
            self._open = _Open(name, key, stream, self._phase, self._take_pending(), shapes, replayed)
        placed = (
            lowered.kernels if stream == COMPUTE else [replace(k, stream=stream) for k in lowered.kernels]
        )
        self._open.kernels.extend(placed)
        if lowered.kernels:
            self._open.calls.append(
                Call(f"{call.namespace}::{call.name}", tuple(t.shape for t in call.inputs))
            )
        if lowered.blocks_host:
            self._close(blocks=True)

    def _wait_for_data(self, stream: str, storages: Iterable[int]) -> None:
        """A stream that reads what a collective makes waits for it, where nothing waited before."""
        if not self._in_flight:
            return
        needed = sorted({self._in_flight[s] for s in storages if s in self._in_flight})
        for op in needed:
            self._close()
            self._add_wait(stream, op)
        self._resolve(needed)

    def _resolve(self, ops: Iterable[int]) -> None:
        done = set(ops)
        self._in_flight = {s: op for s, op in self._in_flight.items() if op not in done}

    def _close(self, *, blocks: bool = False) -> None:
        one, self._open = self._open, None
        if one is None:
            return
        self.ops.append(
            Op(one.name, tuple(one.kernels), None, one.waits, blocks, one.phase, "", one.shapes, None,
               tuple(one.calls), cuda_graph=one.cuda_graph)
        )  # fmt: skip
        if one.kernels:
            self._tails[one.stream] = {len(self.ops) - 1}

    def _flush_silent(self, before_ns: float) -> None:
        """Operators that launched nothing (views, reshapes) still take host time."""
        while self._silent and self._silent[-1].start_ns < before_ns:
            self._close()
            one = self._silent.pop()
            self.ops.append(Op(one.name, (), phase=self._phase, waits=self._take_pending()))

    def _take_pending(self) -> tuple[Wait, ...]:
        waits, self._pending = tuple(dict.fromkeys(self._pending)), []
        return waits

    def _add_wait(self, stream: str, op: int) -> None:
        self._pending.append(Wait(stream, op))
        self._tails.setdefault(stream, set()).add(op)

    def _stream(self, number: int) -> str:
        return self._streams.setdefault(number, f"stream {len(self._streams)}")

    # Streams and events

    def _sync(self, record: SyncRecord) -> None:
        if record.what == "record":
            self._close()
            self._events[record.event] = frozenset(self._tails.get(self._stream(record.stream), ()))
        elif record.what == "wait":
            stream = self._stream(record.stream)
            ahead = self._events.get(record.event, frozenset()) - self._tails.get(stream, set())
            if ahead:
                self._close()
                for op in sorted(ahead):
                    self._add_wait(stream, op)
        else:
            self._host_waits(record)

    def _host_waits(self, record: SyncRecord) -> None:
        self._close()
        if record.what == "event_sync":
            targets = sorted(self._events.get(record.event, ()))
        elif record.what == "stream_sync":
            targets = sorted(self._tails.get(self._stream(record.stream), ()))
        else:
            targets = sorted({op for tail in self._tails.values() for op in tail})
        name = {"event_sync": "cudaEventSynchronize", "stream_sync": "cudaStreamSynchronize"}
        waits = (*self._take_pending(), *(Wait(HOST, op) for op in targets))
        self.ops.append(Op(name.get(record.what, "cudaDeviceSynchronize"), waits=waits, phase=self._phase))

    def _wait(self, record: WaitRecord) -> None:
        op = (
            self._started.get(record.collective)
            if record.collective >= 0
            else self._in_flight.get(record.storage)
        )
        if op is None:
            return
        self._close()
        self._add_wait(self._stream(record.stream), op)
        collective = self.ops[op].collective
        if collective is not None and collective.kind == "barrier":
            self._pending.append(Wait(HOST, op))
        self._resolve([op])

    # Collectives

    def _collective(self, record: CollectiveRecord, owner: HostOperator | None) -> None:
        self._close()
        if owner is not None:
            self._flush_silent(owner.start_ns)
        if record.in_backward:
            self._phase = "backward"
        stream = self._stream(record.stream)
        collective = self._described(record, stream)
        name = OPERATORS[record.kind]
        if record.kind == "send_recv" and not record.sends:
            name = "c10d::recv_"
        waits = (*self._take_pending(), Wait(collective.stream, stream))
        self.ops.append(Op(name, (), collective, waits, phase=self._phase))
        at = len(self.ops) - 1
        self._started[record.mark] = at
        self._tails[collective.stream] = {at}
        for storage in record.storages:
            if storage >= 0:
                self._in_flight[storage] = at

    def _described(self, record: CollectiveRecord, stream: str) -> Collective:
        if record.kind == "send_recv":
            group, channel = self._message(record)
        else:
            group = self._group(record.group)
            channel = COMM if group == WORLD else f"{COMM} {group}"
        sizes, bytes_ = None, record.bytes
        if record.kind == "all_to_allv" and record.send_splits and record.receive_splits:
            sizes = self._matrix(record)
            bytes_ = float(sizes.sum(axis=1).max())
        return Collective(record.kind, bytes_, group, channel, record.dtype, sizes, name=record.kind,
                          after=(stream,))  # fmt: skip

    def _group(self, ranks: tuple[int, ...]) -> str:
        if len(ranks) == self.world:
            return WORLD
        family = next((f for f in self.families if ranks in f.sets), None)
        return family.name if family else WORLD

    def _message(self, record: CollectiveRecord) -> tuple[str, str]:
        """A message, or one each way at once, belongs to a pair of places in its group."""
        family = next((f for f in self.families if record.group in f.sets), None)
        if family is None:
            family = Family(WORLD, WORLD, [tuple(range(self.world))])
        mine, theirs = record.group.index(self.rank), record.peer
        start, end = min(mine, theirs), max(mine, theirs)
        name = f"{family.name} {start}-{end}"
        self.message_groups[name] = (family, start, end)
        return name, f"p2p {name}"

    def _matrix(self, record: CollectiveRecord) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Rows send to columns: this rank's row and column are known, the others are taken as its mean."""
        ranks = len(record.group)
        mine = record.group.index(self.rank)
        matrix = np.full((ranks, ranks), float(np.mean(record.send_splits)))
        matrix[mine, :] = record.send_splits
        matrix[:, mine] = record.receive_splits
        return matrix


def _phase(name: str, node: str) -> str:
    if name.startswith("Optimizer."):
        return "optimizer"
    return "backward" if node or name.startswith(_BACKWARD) else "forward"
