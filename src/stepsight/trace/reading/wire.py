"""Just enough protobuf: fields of a message, packed integers, and messages in a row."""

from __future__ import annotations

import struct
from collections.abc import Iterator

Field = tuple[int, int, int | bytes]
"""Field number, wire type, and the value: an integer or the raw bytes."""

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are not a protobuf message."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A base-128 integer and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise WireError("a number runs past the end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7


def signed(value: int) -> int:
    """An int64 that was written as its 64-bit two's complement."""
    return value - (1 << 64) if value >= 1 << 63 else value


def fields(data: bytes) -> Iterator[Field]:
    """The fields of one message, in order."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, kind, value
        elif kind == LENGTH:
            size, at = varint(data, at)
            if at + size > len(data):
                raise WireError("a field runs past the end")
            yield number, kind, data[at : at + size]
            at += size
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            yield number, kind, data[at : at + size]
            at += size
        else:
            raise WireError(f"wire type {kind}")


def packed(value: int | bytes) -> list[int]:
    """A repeated integer field: packed bytes, or a single unpacked value."""
    if isinstance(value, int):
        return [value]
    at = 0
    found = []
    while at < len(value):
        number, at = varint(value, at)
        found.append(number)
    return found


def delimited(data: bytes) -> Iterator[bytes]:
    """Messages in a row, each after its length. Stops at a cut one with `WireError`."""
    at = 0
    while at < len(data):
        size, at = varint(data, at)
        if at + size > len(data):
            raise WireError("the last message is cut")
        yield data[at : at + size]
        at += size


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
    return to_varint(number << 3 | VARINT) + to_varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    return to_varint(number << 3 | LENGTH) + to_varint(len(value)) + value


def text_field(number: int, value: str) -> bytes:
    return bytes_field(number, value.encode())


def packed_field(number: int, values: list[int]) -> bytes:
    return bytes_field(number, b"".join(to_varint(v) for v in values)) if values else b""


def double(value: bytes) -> float:
    """A fixed64 as the double it is."""
    return float(struct.unpack("<d", value)[0])
