"""Linking one rank's trace: operator ↔ launch call ↔ kernel, and the tree of operators.

Kernels name their launch call by ``correlation``; the call lies inside an operator on its
thread. Where a trace (2024 on) holds a kernel but not its call, the operator is found by
``External id``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.overheads.tables import op_class
from stepsight.trace.events import Event
from stepsight.trace.kineto import KinetoTrace, in_time_order
from stepsight.trace.launches import NO_OP, Launch, clock_shift_us, hidden_waits

C = area("traces")

_SYNC = re.compile(
    r"^(cuda|hip)(Device|Stream|Event)Synchronize|^cuCtxSynchronize|^cu(Stream|Event)Synchronize"
)
_STREAM_WAIT = re.compile(r"^(cuda|hip|cu)StreamWaitEvent")
_RECORD = re.compile(r"^(cuda|hip|cu)EventRecord")
ALLOCATION_CALLS = ("cudaMalloc", "cudaFree", "hipMalloc", "hipFree", "cudaHostAlloc", "cudaFreeHost")
_NCCL = re.compile(r"^(nccl|rccl|.*ncclDevKernel|.*ncclKernel|.*rcclGenericKernel)", re.IGNORECASE)


@dataclass(slots=True)
class LinkedTrace:
    """A rank's trace with every kernel joined to its call and operator.

    ``ops`` holds operators (and the ``nccl:`` ranges) in time order, ``parent`` the index of
    the operator around each, `NO_OP` for a top-level one. ``syncs``, ``stream_waits`` and
    ``records`` are the runtime calls that order host, streams and events.
    ``orphans`` are kernels whose launch lies outside the trace.
    """

    trace: KinetoTrace
    ops: list[Event]
    parent: list[int]
    spans: dict[int | str, tuple[list[float], list[int]]]
    launches: list[Launch] = field(default_factory=list)
    orphans: list[Event] = field(default_factory=list)
    syncs: list[Event] = field(default_factory=list)
    stream_waits: list[Event] = field(default_factory=list)
    records: list[Event] = field(default_factory=list)
    hidden_waits: dict[tuple[int | str, float], Launch] = field(default_factory=dict)
    """What the host waited for where no call shows it, by thread and start of the wait in ``syncs``."""
    clock_shift_us: float = 0.0
    """By how much the GPU's clock ran early; its events have been moved."""
    _children: dict[int, list[int]] = field(default_factory=dict)
    _allocations: tuple[FloatArray, FloatArray] | None = None

    @property
    def link_rate(self) -> float:
        """Share of the kernels with a launch call in the trace that found their operator."""
        kernels = sum(len(x.gpu) for x in self.launches)
        found = sum(len(x.gpu) for x in self.launches if x.op != NO_OP)
        return found / kernels if kernels else 1.0

    @property
    def earlier_work(self) -> list[Event]:
        """What was launched before the recording: kernels without a call, ahead of all others of a stream."""
        first: dict[int | str, float] = {}
        for launch in self.launches:
            for event in launch.gpu:
                stream = event.args.stream
                first[stream] = min(first.get(stream, event.ts), event.ts)
        return [e for e in self.orphans if e.ts < first.get(e.args.stream, float("-inf"))]

    @property
    def op_names(self) -> set[str]:
        """The names of its operators."""
        return {op.name for op in self.ops}

    @property
    def allocations(self) -> tuple[FloatArray, FloatArray]:
        """When calls began that allocate or free device memory, and the time spent in them up to each."""
        if self._allocations is None:
            calls = [c for c in self.trace.runtime if c.name.startswith(ALLOCATION_CALLS)]
            spent = np.concatenate([[0.0], np.cumsum([c.dur for c in calls])])
            self._allocations = np.array([c.ts for c in calls]), spent
        return self._allocations

    def children(self, op: int) -> list[int]:
        """The operators directly inside one, in time order; of `NO_OP`, the top-level ones."""
        if not self._children:
            for i, p in enumerate(self.parent):
                self._children.setdefault(p, []).append(i)
        return self._children.get(op, [])

    def enclosing(self, call: Event) -> int:
        """The innermost operator around a call on its thread."""
        if call.tid not in self.spans:
            return NO_OP
        starts, indices = self.spans[call.tid]
        at = bisect_right(starts, call.ts) - 1
        op = indices[at] if at >= 0 else NO_OP
        while op != NO_OP and self.ops[op].end < call.ts:
            op = self.parent[op]
        return op

    def chain(self, op: int) -> Iterable[Event]:
        """The operator and everything around it, innermost first."""
        while op != NO_OP:
            yield self.ops[op]
            op = self.parent[op]


def is_collective_kernel(event: Event) -> bool:
    """Whether a GPU event is a NCCL or RCCL kernel."""
    return _names_collective(event.name)


@lru_cache(maxsize=4096)
def _names_collective(kernel: str) -> bool:
    return bool(_NCCL.match(kernel)) and "memcpy" not in kernel.lower()


def link(trace: KinetoTrace) -> LinkedTrace:
    """Join the events of one rank."""
    nccl_ranges = [a for a in trace.annotations if a.name.startswith(("nccl:", "gloo:"))]
    ops = [*trace.host_ops, *nccl_ranges]
    if nccl_ranges:
        in_time_order(ops)
    parent, spans = _tree(ops)
    gpu_of: dict[int, list[Event]] = defaultdict(list)
    for event in trace.gpu:
        gpu_of[event.args.correlation].append(event)
    joined = LinkedTrace(trace, ops, parent, spans)
    ordering: dict[str, list[Event] | None] = {}
    for call in trace.runtime:
        if call.name not in ordering:
            ordering[call.name] = _ordering(joined, call.name)
        kept = ordering[call.name]
        if kept is not None:
            kept.append(call)
        work = gpu_of.pop(call.args.correlation, None) if call.args.correlation >= 0 else None
        if work:
            joined.launches.append(Launch(call, work, joined.enclosing(call), len(joined.launches)))
    joined.clock_shift_us = clock_shift_us(joined.launches)
    for event in trace.gpu if joined.clock_shift_us else ():
        event.ts += joined.clock_shift_us
    joined.orphans = sorted((e for events in gpu_of.values() for e in events), key=lambda e: e.ts)
    _link_by_external_id(joined)
    for call, launch in hidden_waits(joined.launches, joined.orphans, trace.runtime, ops):
        joined.syncs.append(call)
        if launch is not None:
            joined.hidden_waits[call.tid, call.ts] = launch
    _note_free_times(joined)
    return joined


def _note_free_times(joined: LinkedTrace) -> None:
    """For every launched kernel, when its stream had done all before it, recorded launches or not."""
    launched = [(e.ts, x.index, e) for x in joined.launches for e in x.gpu]
    launched += [(e.ts, NO_OP, e) for e in joined.orphans]
    free: dict[int | str, float] = {}
    found: list[list[float]] = [[] for _ in joined.launches]
    for _, launch, event in sorted(launched, key=lambda item: item[:2]):
        before = free.get(event.args.stream, 0.0)
        if launch != NO_OP:
            found[launch].append(before)
        free[event.args.stream] = max(before, event.end)
    for one, times in zip(joined.launches, found, strict=True):
        one.free_us = tuple(times)


def _ordering(joined: LinkedTrace, name: str) -> list[Event] | None:
    """Where calls of a name are kept that order host, streams and events; None for other calls."""
    if _SYNC.match(name):
        return joined.syncs
    if _STREAM_WAIT.match(name):
        return joined.stream_waits
    return joined.records if _RECORD.match(name) else None


def _tree(ops: list[Event]) -> tuple[list[int], dict[int | str, tuple[list[float], list[int]]]]:
    """Each operator's parent, and per thread the start times and indices for looking up."""
    parent = [NO_OP] * len(ops)
    stacks: dict[int | str, list[int]] = defaultdict(list)
    spans: dict[int | str, tuple[list[float], list[int]]] = defaultdict(lambda: ([], []))
    ends: list[float] = []
    for i, op in enumerate(ops):
        thread, start = op.tid, op.ts
        stack = stacks[thread]
        end = start + op.dur
        # Timestamps of old traces are whole µs, so a child may seem to outlive its parent by one.
        while stack and (ends[stack[-1]] <= start or ends[stack[-1]] < end - 1.5):
            stack.pop()
        if stack:
            parent[i] = stack[-1]
        stack.append(i)
        ends.append(end)
        starts, indices = spans[thread]
        starts.append(start)
        indices.append(i)
    return parent, spans


def _link_by_external_id(joined: LinkedTrace) -> None:
    """Operators for calls that lie in none by time (another thread's launch, a missing range)."""
    by_id = {op.args.external_id: i for i, op in enumerate(joined.ops) if op.args.external_id >= 0}
    for launch in joined.launches:
        if launch.op != NO_OP:
            continue
        external = launch.call.args.external_id
        # Older traces repeat the correlation here; it then names no operator.
        if external >= 0 and external != launch.call.args.correlation and external in by_id:
            launch.op = by_id[external]
        else:
            launch.op = _just_before(joined, launch.call)


def _just_before(joined: LinkedTrace, call: Event) -> int:
    """The operator that ended just before a call outside any operator.

    The runtime's clock differs by a few µs from the operators' in some traces. On the autograd
    thread, the engine adds gradients up after a node returns, outside its range.
    """
    if call.tid not in joined.spans:
        return NO_OP
    starts, indices = joined.spans[call.tid]
    at = bisect_right(starts, call.ts) - 1
    if at < 0:
        return NO_OP
    op = indices[at]
    top = op
    while joined.parent[top] != NO_OP:
        top = joined.parent[top]
    backward = op_class(joined.ops[top].name) == "backward"
    near = C.ENGINE_SUM_US if backward else C.CLOCK_DRIFT_US
    usable = backward or op_class(joined.ops[op].name) != "view" or top != op
    return op if usable and call.ts - joined.ops[top].end <= near else NO_OP
