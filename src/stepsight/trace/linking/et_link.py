"""Joining an execution trace with the profiler trace of the same rank.

Newer files repeat the record-function id on both sides. Where they do not, both list the
same operators in the order in which the threads ran them, and are matched in that order.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event
from stepsight.trace.reading.execution_trace import EtNode, ExecutionTrace

_HOST_PREFIXES = ("[", "##", "ProfilerStep", "Optimizer.", "enumerate(", "DistributedDataParallel")


@dataclass(frozen=True, slots=True)
class EtLink:
    """Which operator of the profile each ET node is (by index into `LinkedTrace.ops`)."""

    op_of_node: dict[int, int]
    nodes: int
    how: str
    node_of_op: dict[int, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Share of the ET's operators that were found in the profile."""
        return len(self.op_of_node) / self.nodes if self.nodes else 1.0


def link_et(et: ExecutionTrace, linked: LinkedTrace) -> EtLink:
    """Match by record id where both sides have it, else by order."""
    nodes = [n for n in et.operators if not n.name.startswith(_HOST_PREFIXES)]
    by_record = _by_record_id(nodes, linked)
    if by_record and len(by_record) >= 0.5 * len(nodes):
        return EtLink(by_record, len(nodes), "rf_id", {op: n for n, op in by_record.items()})
    by_order = _by_order(nodes, linked)
    return EtLink(by_order, len(nodes), "order", {op: n for n, op in by_order.items()})


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
        best = max(free, key=lambda t: _alike(names, [o.name for _, o in free[t]]))
        ops = free.pop(best)
        blocks = SequenceMatcher(None, names, [o.name for _, o in ops], autojunk=False).get_matching_blocks()
        for a, b, size in blocks:
            matched.update({listed[a + k].id: ops[b + k][0] for k in range(size)})
    return matched


def _alike(a: list[str], b: list[str]) -> float:
    return SequenceMatcher(None, a, b, autojunk=False).quick_ratio() * min(len(a), len(b))
