"""Shapes from an execution trace, for a profile that was recorded without them."""

from __future__ import annotations

import msgspec

from stepsight.trace.linking.et_link import link_et
from stepsight.trace.linking.link import LinkedTrace
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


def belongs(linked: LinkedTrace, et: ExecutionTrace) -> bool:
    """Whether both were recorded by the same process."""
    return bool(linked.ops) and et.pid == linked.ops[0].pid
