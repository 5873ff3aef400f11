"""Joining an execution trace with the profiler trace of the same rank, for profiles recorded without shapes.

Newer files repeat the record-function id on both sides. Where they do not, both list the same operators in
the order in which the threads ran them, and are matched in that order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher

import msgspec

from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event
from stepsight.trace.reading.execution_trace import EtNode, ExecutionTrace

MOST_PAIRS = 20_000_000
"""Pairs of equal names up to which two lists are aligned block by block (seconds beyond)."""
_HOST_PREFIXES = ("[", "##", "ProfilerStep", "Optimizer.", "enumerate(", "DistributedDataParallel")


def link_et(et: ExecutionTrace, linked: LinkedTrace) -> dict[int, int]:
    """Which operator of the profile (its index in `LinkedTrace.ops`) each ET node is: by record id where both
    sides have it, else by order."""
    nodes = [n for n in et.operators if not n.name.startswith(_HOST_PREFIXES)]
    by_record = _by_record_id(nodes, linked)
    if by_record and len(by_record) >= 0.5 * len(nodes):
        return by_record
    return _by_order(nodes, linked)


def _by_record_id(nodes: list[EtNode], linked: LinkedTrace) -> dict[int, int]:
    known = {op.args.record_id: i for i, op in enumerate(linked.ops) if op.args.record_id > 0}
    return {n.id: known[n.record_id] for n in nodes if n.record_id in known}


def _by_order(nodes: list[EtNode], linked: LinkedTrace) -> dict[int, int]:
    """Thread by thread: the threads with the most operators on either side belong together."""
    node_threads: dict[int, list[EtNode]] = defaultdict(list)
    for node in sorted(nodes, key=lambda n: n.record_id if n.record_id >= 0 else n.id):
        node_threads[node.thread].append(node)
    op_threads: dict[int | str, list[tuple[int, Event]]] = defaultdict(list)
    for i, op in enumerate(linked.ops):
        if not op.name.startswith(_HOST_PREFIXES):
            op_threads[op.tid].append((i, op))
    matched: dict[int, int] = {}
    free = dict(op_threads)
    for listed in sorted(node_threads.values(), key=len, reverse=True):
        if not free:
            break
        names = [n.name for n in listed]
        best = max(free, key=lambda t: _likeness(names, [o.name for _, o in free[t]]))
        ops = free.pop(best)
        for i, j in _aligned(names, [o.name for _, o in ops]):
            matched[listed[i].id] = ops[j][0]
    return matched


def _aligned(a: list[str], b: list[str]) -> list[tuple[int, int]]:
    """Which entries of two lists of names are the same ones: blocks in common, longest first. None of lists
    with too many pairs of equal names for that."""
    counts = Counter(a), Counter(b)
    if sum(n * counts[1][name] for name, n in counts[0].items()) > MOST_PAIRS:
        return []
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return [(i + k, j + k) for i, j, size in blocks for k in range(size)]


def _likeness(a: list[str], b: list[str]) -> float:
    return SequenceMatcher(None, a, b, autojunk=False).quick_ratio() * min(len(a), len(b))


def has_shapes(linked: LinkedTrace) -> bool:
    """Whether the profile recorded its operators' input sizes."""
    return any(op.shapes() for op in linked.ops if op.name.startswith("aten::"))


def add_shapes(linked: LinkedTrace, et: ExecutionTrace) -> None:
    """Give the profile's operators the sizes that the execution trace has for them."""
    nodes = {node.id: node for node in et.nodes}
    for node, op in link_et(et, linked).items():
        event, known = linked.ops[op], nodes[node]
        if not event.shapes() and known.shapes:
            event.args = msgspec.structs.replace(
                event.args,
                dims=msgspec.Raw(msgspec.json.encode(known.shapes)),
                types=msgspec.Raw(msgspec.json.encode(known.types)),
            )


def repeat_shapes(linked: LinkedTrace, bounds: Sequence[tuple[float, float]]) -> None:
    """Give the steps that the execution trace does not cover the sizes of the one it does.

    ``bounds`` are the steps. Operators are the same by name and which of that name in their step they are,
    where all steps that know a size agree on it and all steps have as many of that name.
    """
    placed: dict[tuple[str, int], list[Event]] = defaultdict(list)
    counts: dict[str, set[int]] = defaultdict(set)
    for start, end in bounds:
        seen: Counter[str] = Counter()
        first = bisect_left(linked.ops, start, key=lambda op: op.ts)
        for op in linked.ops[first : bisect_left(linked.ops, end, key=lambda op: op.ts)]:
            placed[op.name, seen[op.name]].append(op)
            seen[op.name] += 1
        for name in {*counts, *seen}:
            counts[name].add(seen[name])
    for (name, _), same in placed.items():
        known = {bytes(op.args.dims): op.args for op in same if op.shapes()}
        if len(counts[name]) == 1 and len(known) == 1:
            (stated,) = known.values()
            for op in same:
                if not op.shapes():
                    op.args = msgspec.structs.replace(op.args, dims=stated.dims, types=stated.types)


def belongs(linked: LinkedTrace, et: ExecutionTrace) -> bool:
    """Whether both were recorded by the same process."""
    return bool(linked.ops) and et.pid == linked.ops[0].pid
