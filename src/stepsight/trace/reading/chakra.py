"""Chakra execution traces: ``.et`` protobuf files and their JSON print, read and written.

The schema (mlcommons/chakra, et_def.proto): a file is a GlobalMetadata message and then
Nodes, each after its length. Only the fields stepsight uses are named here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepsight.errors import InputError
from stepsight.trace.reading import wire
from stepsight.trace.reading.files import TraceFile

NODE_TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
    "COMM_RECV_NODE", "COMM_COLL_NODE",
)  # fmt: skip
COMP, SEND, RECV, COLL = "COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE"
COLLECTIVES = (
    "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK", "BARRIER",
)  # fmt: skip
"""CollectiveCommType by number."""

# Field numbers of Node.
_ID, _NAME, _TYPE, _CTRL, _DATA, _START, _DURATION, _ATTR = 1, 2, 3, 4, 5, 6, 7, 10
# Field numbers of AttributeProto by the kind of its value.
_DOUBLE, _FLOAT, _INT32, _INT64, _UINT32, _UINT64, _BOOL, _STRING = 3, 5, 7, 9, 11, 13, 27, 29
_METADATA_VERSION, _METADATA_ATTR = 1, 2

Value = int | float | str | bool


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

    @property
    def is_host(self) -> bool:
        return bool(self.attributes.get("is_cpu_op", True))


@dataclass(frozen=True, slots=True)
class ChakraTrace:
    """One rank's nodes."""

    path: str
    metadata: Mapping[str, Value]
    nodes: tuple[ChakraNode, ...]
    warnings: tuple[str, ...] = ()


def looks_like_chakra(file: TraceFile) -> bool:
    """Whether a file is Chakra's, by its name or by its first JSON object."""
    if file.path.endswith(".et"):
        return True
    head = file.content[:2048]
    return b'"attr"' in head and b'"schema"' in head and b'"nodes"' not in head


def read_chakra(file: TraceFile) -> ChakraTrace:
    """Read a ``.et`` file or Chakra's JSON print of one."""
    if file.content.lstrip()[:1] == b"{" and not file.path.endswith(".et"):
        return _from_json(file)
    return _from_wire(file)


def write_chakra(metadata: Mapping[str, Value], nodes: list[ChakraNode]) -> bytes:
    """The bytes of a ``.et`` file."""
    head = b"".join(wire.bytes_field(_METADATA_ATTR, _attribute(k, v)) for k, v in metadata.items())
    head = wire.text_field(_METADATA_VERSION, "0.0.4") + head
    messages = [head, *(_encoded(node) for node in nodes)]
    return b"".join(wire.to_varint(len(m)) + m for m in messages)


def _from_wire(file: TraceFile) -> ChakraTrace:
    metadata: dict[str, Value] = {}
    nodes: list[ChakraNode] = []
    warnings = list(file.warnings)
    try:
        for i, message in enumerate(wire.delimited(file.content)):
            if i == 0:
                for number, _, value in wire.fields(message):
                    if number == _METADATA_ATTR and isinstance(value, bytes):
                        metadata.update([_decoded_attribute(value)])
            else:
                nodes.append(_decoded(message))
    except wire.WireError as error:
        if not nodes:
            raise InputError(file.path, f"is not a Chakra trace ({error})") from None
        warnings.append(f"{file.name}: {error}; {len(nodes)} nodes read")
    return ChakraTrace(file.path, metadata, tuple(nodes), tuple(warnings))


def _decoded(message: bytes) -> ChakraNode:
    known: dict[int, Any] = {}
    attributes: dict[str, Value] = {}
    for number, _, value in wire.fields(message):
        if number == _ATTR and isinstance(value, bytes):
            attributes.update([_decoded_attribute(value)])
        elif number in (_CTRL, _DATA):
            known.setdefault(number, []).extend(wire.packed(value))
        else:
            known[number] = value
    kind = int(known.get(_TYPE, 0))
    return ChakraNode(
        int(known.get(_ID, 0)), bytes(known.get(_NAME, b"")).decode(errors="replace"),
        NODE_TYPES[kind] if kind < len(NODE_TYPES) else NODE_TYPES[0], tuple(known.get(_CTRL, ())),
        tuple(known.get(_DATA, ())), int(known.get(_START, 0)), int(known.get(_DURATION, 0)), attributes,
    )  # fmt: skip


def _decoded_attribute(message: bytes) -> tuple[str, Value]:
    name, result = "", 0
    value: Value = result
    for number, _, raw in wire.fields(message):
        if number == 1 and isinstance(raw, bytes):
            name = raw.decode(errors="replace")
        elif number in (_INT32, _INT64) and isinstance(raw, int):
            value = wire.signed(raw)
        elif number in (_UINT32, _UINT64) and isinstance(raw, int):
            value = raw
        elif number == _BOOL:
            value = bool(raw)
        elif number == _STRING and isinstance(raw, bytes):
            value = raw.decode(errors="replace")
        elif number == _DOUBLE and isinstance(raw, bytes):
            value = wire.double(raw)
    return name, value


def _encoded(node: ChakraNode) -> bytes:
    parts = [
        wire.number_field(_ID, node.id),
        wire.text_field(_NAME, node.name),
        wire.number_field(_TYPE, NODE_TYPES.index(node.type)),
        wire.packed_field(_CTRL, list(node.control_deps)),
        wire.packed_field(_DATA, list(node.data_deps)),
        wire.number_field(_START, node.start_us),
        wire.number_field(_DURATION, node.duration_us),
    ]
    parts += [wire.bytes_field(_ATTR, _attribute(k, v)) for k, v in node.attributes.items()]
    return b"".join(parts)


def _attribute(name: str, value: Value) -> bytes:
    head = wire.text_field(1, name)
    if isinstance(value, bool):
        return head + wire.number_field(_BOOL, int(value))
    if isinstance(value, int):
        return head + wire.number_field(_INT64, value)
    if isinstance(value, str):
        return head + wire.text_field(_STRING, value)
    raise TypeError(f"a Chakra attribute cannot hold {value!r}")


def _from_json(file: TraceFile) -> ChakraTrace:
    """Chakra's JSON print: one object after the other, the metadata first."""
    text = file.content.decode(errors="replace")
    decode = json.JSONDecoder(strict=False).raw_decode
    objects: list[dict[str, Any]] = []
    warnings = list(file.warnings)
    at = 0
    while at < len(text):
        while at < len(text) and text[at].isspace():
            at += 1
        if at >= len(text):
            break
        try:
            item, at = decode(text, at)
        except json.JSONDecodeError as error:
            warnings.append(f"{file.name}: broken after {len(objects)} objects ({error.msg})")
            break
        objects.append(item)
    if len(objects) < 2:
        raise InputError(file.path, "is not a Chakra JSON trace", "expected the metadata and then nodes")
    nodes = tuple(_json_node(o) for o in objects[1:])
    return ChakraTrace(file.path, _json_attributes(objects[0]), nodes, tuple(warnings))


def _json_node(raw: dict[str, Any]) -> ChakraNode:
    return ChakraNode(
        int(raw.get("id", 0)), str(raw.get("name", "")), str(raw.get("type", NODE_TYPES[0])),
        tuple(int(x) for x in raw.get("ctrlDeps", ())), tuple(int(x) for x in raw.get("dataDeps", ())),
        int(raw.get("startTimeMicros", 0)), int(raw.get("durationMicros", 0)), _json_attributes(raw),
    )  # fmt: skip


def _json_attributes(raw: dict[str, Any]) -> dict[str, Value]:
    result: dict[str, Value] = {}
    for item in raw.get("attr", ()):
        key = next((k for k in item if k.endswith("Val")), None)
        if key is None:
            result[str(item.get("name", ""))] = 0
            continue
        value = item[key]
        result[str(item.get("name", ""))] = value if key in ("stringVal", "boolVal") else _as_number(value)
    return result


def _as_number(value: Any) -> Value:
    text = str(value)
    return int(text) if text.lstrip("-").isdigit() else float(text)
