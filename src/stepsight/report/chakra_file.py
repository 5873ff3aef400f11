"""The bytes of a Chakra ``.et`` file: just enough protobuf to write one.

The schema (mlcommons/chakra, et_def.proto): a file is a GlobalMetadata message and then Nodes, each after its
length. Only the fields that stepsight writes are named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
