"""Shapes from an execution trace, for a profile that was recorded without them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from stepsight.trace.linking.et_link import link_et
from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event
from stepsight.trace.reading.execution_trace import ExecutionTrace


def has_shapes(linked: LinkedTrace) -> bool:
    """Whether the profile recorded its operators' input sizes."""
    return any(op.shapes() for op in linked.ops if op.name.startswith("aten::"))


def add_shapes(linked: LinkedTrace, et: ExecutionTrace) -> float:
    """Give the profile's operators the sizes that the execution trace has for them.

    Returns the share of the execution trace's operators that were found.
    """
    joined = link_et(et, linked)
    nodes = et.by_id()
    for node, op in joined.op_of_node.items():
        event, known = linked.ops[op], nodes[node]
        if not event.shapes() and known.shapes:
            event.args = msgspec.structs.replace(
                event.args,
                dims=msgspec.Raw(msgspec.json.encode(known.shapes)),
                types=msgspec.Raw(msgspec.json.encode(known.types)),
            )
    return joined.rate


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
    for (name, _), alike in placed.items():
        known = {bytes(op.args.dims): op.args for op in alike if op.shapes()}
        if len(counts[name]) == 1 and len(known) == 1:
            (stated,) = known.values()
            for op in alike:
                if not op.shapes():
                    op.args = msgspec.structs.replace(op.args, dims=stated.dims, types=stated.types)


def belongs(linked: LinkedTrace, et: ExecutionTrace) -> bool:
    """Whether both were recorded by the same process."""
    return bool(linked.ops) and et.pid == linked.ops[0].pid
