"""PyTorch execution traces (ET): operators with shapes, for profiles of the same rank recorded without them.

Schemas 1.0.0–1.0.x keep fields flat on the node; from 1.0.2-chakra on they lie under ``inputs``, ``outputs``
and ``attrs``. Newer files repeat the record-function id on both sides; where they do not, both list the same
operators in the order in which the threads ran them, and are matched in that order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import msgspec

from stepsight.errors import InputError
from stepsight.trace.events import Event
from stepsight.trace.files import TraceFile, decoded, mended, salvaged
from stepsight.trace.link import LinkedTrace

MOST_PAIRS = 20_000_000
"""Pairs of equal names up to which two lists are aligned block by block (seconds beyond)."""
_HOST_PREFIXES = ("[", "##", "ProfilerStep", "Optimizer.", "enumerate(", "DistributedDataParallel")


@dataclass(frozen=True, slots=True)
class EtNode:
    """One operator (or thread, or kernel) of an execution trace.

    ``record_id`` is the record-function id that Kineto repeats; ``category`` is set on kernels.
    """

    id: int
    name: str
    record_id: int = -1
    thread: int = 0
    shapes: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    category: str = ""


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """The nodes of one rank in file order."""

    path: str
    schema: str
    nodes: tuple[EtNode, ...]
    warnings: tuple[str, ...] = ()
    pid: int = -1

    @property
    def operators(self) -> list[EtNode]:
        """The nodes that stand for host operators: no threads, no markers, no kernels."""
        return [n for n in self.nodes if not n.category and not n.name.startswith(("[", "##"))]


def looks_like_et(content: bytes) -> bool:
    """Whether the bytes are an execution trace."""
    head = content[:4096]
    return b'"schema"' in head and b'"nodes"' in content[:65536]


def read_execution_trace(file: TraceFile) -> ExecutionTrace:
    """Read an ET of any schema; a cut file gives the nodes it still holds."""
    document, warnings = _document(file)
    listed = _list(document.get("nodes"))
    nodes = [node for raw in listed if (node := _node(raw)) is not None]
    if nodes and len(nodes) < len(listed):
        warnings = [*warnings, f"{file.name}: {len(listed) - len(nodes)} odd nodes were left out"]
    if not nodes:
        raise InputError(file.path, "holds no execution-trace nodes", "record it again")
    return ExecutionTrace(
        file.path, str(document.get("schema", "")), tuple(nodes), (*file.warnings, *warnings),
        _whole(document.get("pid")),
    )  # fmt: skip


def _document(file: TraceFile) -> tuple[dict[str, Any], list[str]]:
    whole = decoded(file, msgspec.json.decode)
    if isinstance(whole, dict):
        return whole, []
    partial, lost = salvaged(mended(file.content))
    return partial, [
        f"{file.name}: cut or broken JSON; {len(_list(partial.get('nodes')))} nodes read, {lost} bytes lost"
    ]


def _node(raw: Any) -> EtNode | None:
    """A node; None for what is none."""
    if not isinstance(raw, dict) or not isinstance(raw.get("id"), int) or "name" not in raw:
        return None
    nested = isinstance(raw.get("attrs"), list)
    attributes = [a for a in _list(raw.get("attrs")) if isinstance(a, dict)]
    fields = {str(a.get("name")): a.get("value") for a in attributes} if nested else raw
    inputs = raw["inputs"] if isinstance(raw.get("inputs"), dict) else {}
    return EtNode(
        raw["id"], str(raw["name"]), _whole(fields.get("rf_id")), _whole(fields.get("tid"), 0),
        tuple(_list(inputs.get("shapes") if nested else raw.get("input_shapes"))),
        tuple(map(str, _list(inputs.get("types") if nested else raw.get("input_types")))),
        str(raw.get("cat", "")),
    )  # fmt: skip


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any, default: int = -1) -> int:
    return int(value) if isinstance(value, int | float) and abs(value) < 2**63 else default


def looks_like_chakra(file: TraceFile) -> bool:
    """Whether a file is Chakra's, by its name or by its first JSON object."""
    if file.path.endswith(".et"):
        return True
    head = file.content[:2048]
    return b'"attr"' in head and b'"schema"' in head and b'"nodes"' not in head


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
