"""Finding, unpacking and repairing the files of a run: folders, .json, .json.gz, .tar.gz and .et.

A profiler that was killed leaves half a file; some versions write NaN or raw backslashes. What can be read is
read, and the reader notes what was lost.
"""

from __future__ import annotations

import gc
import gzip
import io
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import msgspec

from stepsight.errors import InputError
from stepsight.inputs import check_limit, copy_expanded, read_bytes

Decoded = TypeVar("Decoded")
SUFFIXES = (".json", ".json.gz", ".tar.gz", ".tgz", ".et")


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One trace as bytes: where it came from, and what was lost on the way."""

    path: str
    content: bytes
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return file_name(self.path)


def file_name(path: str) -> str:
    """What to call a trace in a sentence: its file's name; a member of an archive goes by its own."""
    return Path(path.rsplit("::", 1)[-1]).name


def trace_files(paths: Sequence[Path]) -> Iterator[TraceFile]:
    """Every file under ``paths`` that may be a trace, sorted by name; archives are opened."""
    for path in _listed(paths):
        if path.name.endswith((".tar.gz", ".tgz")):
            yield from _members(path)
        else:
            yield _read(str(path), read_bytes(path, most="EXPANDED_BYTES"))


def _listed(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(SUFFIXES))
            if not inside:
                raise InputError(
                    str(path), "holds no trace files", "expected .json, .json.gz, .tar.gz or .et files"
                )
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise InputError(str(path), "no such file or folder")
    return list(dict.fromkeys(found))


def _read(path: str, content: bytes) -> TraceFile:
    if content[:2] != b"\x1f\x8b":
        return TraceFile(path, content)
    out = io.BytesIO()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            copy_expanded(cast(IO[bytes], packed), out, path, len(content))
    except (EOFError, zlib.error, OSError) as error:
        partial = _inflated_as_far_as_possible(path, content)
        return TraceFile(path, partial, (f"{file_name(path)}: cut or damaged gzip ({error}); read in part",))
    return TraceFile(path, out.getvalue())


def _inflated_as_far_as_possible(path: str, content: bytes) -> bytes:
    inflate = zlib.decompressobj(wbits=31)
    pieces: list[bytes] = []
    size = 0
    for at in range(0, len(content), 65536):
        try:
            pieces.append(inflate.decompress(content[at : at + 65536]))
        except zlib.error:
            break
        size += len(pieces[-1])
        check_limit(size, "EXPANDED_BYTES", path, "its unpacked size in bytes")
    return b"".join(pieces)


def _members(path: Path) -> Iterator[TraceFile]:
    total = 0
    try:
        packed = read_bytes(path, most="EXPANDED_BYTES")
        with tarfile.open(fileobj=io.BytesIO(_read(str(path), packed).content)) as archive:
            for member in sorted(archive.getmembers(), key=lambda m: m.name):
                handle = archive.extractfile(member) if member.isfile() else None
                if handle is not None and member.name.endswith(SUFFIXES):
                    total += member.size
                    check_limit(total, "EXPANDED_BYTES", str(path), "its unpacked size in bytes")
                    yield _read(f"{path}::{member.name}", handle.read())
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise InputError(str(path), f"is not a readable archive ({error})") from None


_BARE_WORDS = re.compile(rb"(?<=[:\[,\s])(-?(?:NaN|nan|Infinity|inf))(?=[\s,\]}])")
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrtu])')
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_LIST_START = re.compile(r'"(traceEvents|nodes)"\s*:\s*\[')


def mended(content: bytes) -> bytes:
    """The same JSON with bare NaN as null, stray backslashes doubled and control characters dropped."""
    content = _CONTROL.sub(b" ", content)
    return _BARE_WORDS.sub(b"null", _BAD_ESCAPE.sub(rb"\\\\", content))


def decoded(file: TraceFile, decode: Callable[[bytes], Decoded]) -> Decoded | None:
    """What a file holds, as it is or mended; None where it cannot be decoded as a whole."""
    for mend in (False, True):
        try:
            return decode(mended(file.content) if mend else file.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        except MemoryError:
            raise InputError(file.path, "does not fit into memory", "record fewer steps") from None
    return None


def salvaged(content: bytes) -> tuple[dict[str, Any], int]:
    """What a cut or broken file still holds: its leading fields and every whole event.

    Returns the document and how many characters after the last whole event were given up (none
    where the list is closed).
    """
    text = content.decode("utf-8", errors="replace")
    found = _LIST_START.search(text)
    start = found.end() if found else text.find("[") + 1
    if start <= 0:
        return {}, len(text)
    key = found.group(1) if found else "traceEvents"
    document = _leading_fields(text[: found.start()]) if found else {}
    decode = json.JSONDecoder(strict=False).raw_decode
    items: list[Any] = []
    at = good = start
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text) or text[at] == "]":
            break
        try:
            item, at = decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            # One broken event: go on at the next one that starts a line or follows a comma.
            following = re.compile(r'\{\s*"(?:ph|name|id)"').search(text, at + 1)
            if following is None:
                break
            at = following.start()
            continue
        items.append(item)
        good = at
    document[key] = items
    whole = text[good:].lstrip(" \t\r\n,").startswith("]")
    return document, 0 if whole else max(len(text) - good, 1)


def _leading_fields(head: str) -> dict[str, Any]:
    """The scalar and object fields before the event list, as far as they parse."""
    closed = head.rstrip().rstrip(",") + "}"
    try:
        fields = json.loads(closed, strict=False)
    except (json.JSONDecodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


@contextmanager
def collector_off() -> Iterator[None]:
    """No garbage collection of cycles inside a ``with`` block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
