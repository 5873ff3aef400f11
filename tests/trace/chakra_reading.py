"""Chakra ``.et`` files as another program reads them, to check what is exported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stepsight.report.chakra import NODE_TYPES, ChakraNode, Value

_ID, _NAME, _TYPE, _CTRL, _DATA, _START, _DURATION, _ATTR = 1, 2, 3, 4, 5, 6, 7, 10
_INT64, _BOOL, _STRING = 9, 27, 29
_METADATA_ATTR = 2
_VARINT, _LENGTH = 0, 2


@dataclass(frozen=True, slots=True)
class ChakraTrace:
    """One rank's nodes."""

    metadata: Mapping[str, Value]
    nodes: tuple[ChakraNode, ...]


def read_chakra(content: bytes) -> ChakraTrace:
    """The metadata and the nodes of a ``.et`` file."""
    head, *messages = delimited(content)
    metadata = dict(_decoded_attribute(v) for number, v in fields(head) if number == _METADATA_ATTR)
    return ChakraTrace(metadata, tuple(_decoded(message) for message in messages))


def _decoded(message: bytes) -> ChakraNode:
    known: dict[int, Any] = {}
    attributes: dict[str, Value] = {}
    for number, value in fields(message):
        if number == _ATTR:
            attributes.update([_decoded_attribute(value)])
        else:
            known[number] = packed(value) if number in (_CTRL, _DATA) else value
    return ChakraNode(
        known.get(_ID, 0), known.get(_NAME, b"").decode(), NODE_TYPES[known.get(_TYPE, 0)],
        tuple(known.get(_CTRL, ())), tuple(known.get(_DATA, ())), known.get(_START, 0),
        known.get(_DURATION, 0), attributes,
    )  # fmt: skip


def _decoded_attribute(message: bytes) -> tuple[str, Value]:
    found = dict(fields(message))
    name = found.pop(1, b"").decode()
    ((number, value),) = found.items()
    decode = {_INT64: _signed, _BOOL: bool, _STRING: bytes.decode}
    return name, decode[number](value)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def varint(data: bytes, at: int = 0) -> tuple[int, int]:
    """A base-128 integer and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of the fields of one message, in order: integers and bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        assert kind in (_VARINT, _LENGTH)
        value, at = varint(data, at)
        if kind == _LENGTH:
            yield number, data[at : at + value]
            at += value
        else:
            yield number, value


def packed(value: bytes) -> list[int]:
    """A repeated integer field."""
    at, found = 0, []
    while at < len(value):
        number, at = varint(value, at)
        found.append(number)
    return found


def delimited(data: bytes) -> Iterator[bytes]:
    """Messages in a row, each after its length."""
    at = 0
    while at < len(data):
        size, at = varint(data, at)
        yield data[at : at + size]
        at += size
