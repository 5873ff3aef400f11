"""Writing results: JSON of plain values, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
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
    """Write a file in full or not at all: first beside it, then moved into place.

    A link is followed and a file keeps its permissions; a pipe or device is written as it is.
    """
    target = Path(os.path.realpath(path))
    data = content.encode() if isinstance(content, str) else content
    try:
        mode = _mode(target)
        if mode is not None and not stat.S_ISREG(mode):
            target.write_bytes(data)
            return
        beside = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            _write_to_disk(beside, data)
            if mode is not None:
                beside.chmod(stat.S_IMODE(mode))
            beside.replace(target)
        except BaseException:  # an interrupt, too, leaves nothing behind
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise disk_error(path, error) from None


def disk_error(path: str | Path, error: OSError, again: str = "run again") -> InputError:
    """What to tell a user whose file cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InputError(str(path), "the disk is full", f"free some space, then {again}")
    return InputError(str(path), f"cannot be written: {error.strerror}", "choose another path")


def _mode(target: Path) -> int | None:
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        return None


def _write_to_disk(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
