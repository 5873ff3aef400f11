"""A predicted step as Chakra traces, one ``.et`` file per rank shown, for ASTRA-sim and its like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stepsight.documents import write_whole
from stepsight.kernels.columns import product_flops
from stepsight.program.job import HOST, Collective, Kernel
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.timeline import RankTimes, Timeline

_KINDS = {
    "all_reduce": "ALL_REDUCE", "all_to_all": "ALL_TO_ALL", "all_to_allv": "ALL_TO_ALL",
    "all_gather": "ALL_GATHER", "reduce_scatter": "REDUCE_SCATTER", "broadcast": "BROADCAST",
    "reduce": "REDUCE", "barrier": "BARRIER", "send_recv": "BROADCAST",
}  # fmt: skip


def export_chakra(timeline: Timeline, folder: Path, *, ranks: int | None = None) -> list[Path]:
    """Write ``step.<rank>.et`` for every rank that the timeline shows; returns the files.

    ``ranks``: of the real job, where the timeline shows one of each stage.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for times in map(timeline.rank, range(timeline.ranks)):
        path = folder / f"step.{times.number}.et"
        metadata: dict[str, Value] = {
            "schema": "stepsight", "rank": times.number, "ranks": ranks or timeline.ranks,
        }  # fmt: skip
        if missing := left_out(timeline, ranks or timeline.ranks):
            metadata["left_out"] = missing
        write_whole(path, write_chakra(metadata, rank_nodes(times)))
        written.append(path)
    return written


def left_out(timeline: Timeline, ranks: int) -> str:
    """What the files do not hold of a step of this many ranks; empty where they hold all of it."""
    skipped, fewer = timeline.micro_batches_left_out, ranks - timeline.ranks
    found = (f"{skipped:,} micro-batches that repeat those before",) if skipped else ()
    return " and ".join((*found, *((f"{fewer:,} ranks identical to those written",) if fewer else ())))


def rank_nodes(times: RankTimes) -> list[ChakraNode]:
    """Host operators, kernels and collectives of one rank with their dependencies.

    Host operators follow each other by control; a launch depends on its operator and on the
    launch before it on its stream by control, and on what its operator waits for by data.
    """
    nodes: list[ChakraNode] = []
    last_of_op: dict[int, int] = {}
    last_on_stream: dict[str, int] = {}
    launch, host = 0, -1
    zero = times.window_us[0]
    for index, op in enumerate(times.program.ops):
        awaited = [_awaited(w.on, last_of_op, last_on_stream) for w in op.waits if w.waiter == HOST]
        node = len(nodes)
        start, end = float(times.op_start_us[index]), float(times.op_end_us[index])
        after = (host,) if host >= 0 else ()
        data = tuple(a for a in awaited if a is not None)
        times_us = _whole(start - zero), _whole(end - start)
        nodes.append(
            ChakraNode(node, op.name, COMP, after, data, *times_us, {"is_cpu_op": True, "phase": op.phase})
        )
        host = node
        for item in launches_of(op):
            waits = [w for w in op.waits if w.waiter == item.stream]
            awaited = [_awaited(w.on, last_of_op, last_on_stream) for w in waits]
            control = (node, last_on_stream[item.stream]) if item.stream in last_on_stream else (node,)
            number = len(nodes)
            begin, finish = float(times.begin_us[launch]), float(times.end_us[launch])
            data = tuple(a for a in awaited if a is not None)
            kind = COLL if isinstance(item, Collective) else COMP
            times_us = _whole(begin - zero), _whole(finish - begin)
            nodes.append(
                ChakraNode(number, item.label or op.name, kind, control, data, *times_us, _attributes(item))
            )
            last_on_stream[item.stream] = number
            last_of_op[index] = number
            launch += 1
    return nodes


def _awaited(on: int | str, last_of_op: dict[int, int], last_on_stream: dict[str, int]) -> int | None:
    return last_of_op.get(on) if isinstance(on, int) else last_on_stream.get(on)


def _whole(us: float) -> int:
    return max(0, round(us))


def _attributes(item: Kernel | Collective) -> dict[str, Value]:
    if isinstance(item, Collective):
        return {
            "is_cpu_op": False, "comm_type": COLLECTIVES.index(_KINDS[item.kind]),
            "comm_size": round(item.bytes), "pg_name": item.group, "stream": item.stream,
        }  # fmt: skip
    dims = dict(item.dims)
    moved = dims.get("read_bytes", 0.0) + dims.get("write_bytes", dims.get("bytes", 0.0))
    return {
        "is_cpu_op": False, "num_ops": round(product_flops(item) or dims.get("elements", 0.0)),
        "tensor_size": round(moved), "family": item.family, "stream": item.stream,
    }  # fmt: skip


NODE_TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
    "COMM_RECV_NODE", "COMM_COLL_NODE",
)  # fmt: skip
COMP, COLL = "COMP_NODE", "COMM_COLL_NODE"
COLLECTIVES = (
    "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK", "BARRIER",
)  # fmt: skip
"""CollectiveCommType by number."""

_ID, _NAME, _TYPE, _CTRL, _DATA, _START, _DURATION, _ATTR = 1, 2, 3, 4, 5, 6, 7, 10
"""Field numbers of Node."""
_INT64, _BOOL, _STRING = 9, 27, 29
"""Field numbers of AttributeProto by the kind of its value."""
_METADATA_VERSION, _METADATA_ATTR = 1, 2
_VARINT, _LENGTH = 0, 2
"""Wire types."""

Value = int | str | bool


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """One node: an operator, kernel or collective with what it depends on. Times in µs."""

    id: int
    name: str
    type: str
    control_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_us: int = 0
    duration_us: int = 0
    attributes: Mapping[str, Value] = field(default_factory=dict)


def write_chakra(metadata: Mapping[str, Value], nodes: list[ChakraNode]) -> bytes:
    """The bytes of a ``.et`` file."""
    head = b"".join(bytes_field(_METADATA_ATTR, _attribute(k, v)) for k, v in metadata.items())
    head = text_field(_METADATA_VERSION, "0.0.4") + head
    messages = [head, *(_encoded(node) for node in nodes)]
    return b"".join(to_varint(len(m)) + m for m in messages)


def _encoded(node: ChakraNode) -> bytes:
    parts = [
        number_field(_ID, node.id),
        text_field(_NAME, node.name),
        number_field(_TYPE, NODE_TYPES.index(node.type)),
        packed_field(_CTRL, list(node.control_deps)),
        packed_field(_DATA, list(node.data_deps)),
        number_field(_START, node.start_us),
        number_field(_DURATION, node.duration_us),
    ]
    parts += [bytes_field(_ATTR, _attribute(k, v)) for k, v in node.attributes.items()]
    return b"".join(parts)


def _attribute(name: str, value: Value) -> bytes:
    head = text_field(1, name)
    if isinstance(value, bool):
        return head + number_field(_BOOL, int(value))
    if isinstance(value, int):
        return head + number_field(_INT64, value)
    if isinstance(value, str):
        return head + text_field(_STRING, value)
    raise TypeError(f"a Chakra attribute cannot hold {value!r}")


def to_varint(value: int) -> bytes:
    """A non-negative integer, or a negative one as its two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def number_field(number: int, value: int) -> bytes:
    return to_varint(number << 3 | _VARINT) + to_varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    return to_varint(number << 3 | _LENGTH) + to_varint(len(value)) + value


def text_field(number: int, value: str) -> bytes:
    return bytes_field(number, value.encode())


def packed_field(number: int, values: list[int]) -> bytes:
    return bytes_field(number, b"".join(to_varint(v) for v in values)) if values else b""
