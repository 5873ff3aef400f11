"""Finding the traces of a run: folders, .json, .json.gz, .tar.gz and .et files."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from stepsight.errors import InputError
from stepsight.inputs import check_limit, copy_expanded, read_bytes

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
