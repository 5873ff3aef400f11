"""Writing results: JSON of plain values, and files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from stepsight.errors import InputError


def to_json(value: object) -> str:
    """Indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=_plain), indent=2).decode()


def _plain(value: object) -> object:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file in full or not at all: first beside it, then moved into place."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InputError(str(target), f"cannot be written: {error.strerror}", "choose another path") from None
