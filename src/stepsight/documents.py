"""Writing results: JSON of plain values, files that are written whole or not at all, and lines from which an
interrupted command resumes. One writer at a time."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from stepsight.errors import InputError
from stepsight.inputs import read_bytes


def to_json(value: object) -> str:
    """Indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=_plain), indent=2).decode()


def _plain(value: object) -> object:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file in full or not at all: first under another name, then moved into place.

    A link is followed and a file keeps its permissions; a pipe or device is written as it is.
    """
    target = Path(os.path.realpath(path))
    data = content.encode() if isinstance(content, str) else content
    try:
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            target.write_bytes(data)
            return
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                part.chmod(stat.S_IMODE(mode))
            part.replace(target)
        except BaseException:  # an interrupt, too, leaves nothing over
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise disk_error(path, error) from None


def disk_error(path: str | Path, error: OSError, again: str = "run again") -> InputError:
    """What to tell a user whose file cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InputError(str(path), "the disk is full", f"free some space, then {again}")
    return InputError(str(path), f"cannot be written: {error.strerror}", "choose another path")


LOCK_FILE = ".stepsight.lock"


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder; a second process is refused. The system releases it when this process ends."""
    descriptor = os.open(folder / LOCK_FILE, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        _lock(descriptor, folder, forks=True)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, *, forks: bool) -> None:
    """Until the descriptor is closed or this process ends; ``forks``: its children hold it, too."""
    if sys.platform == "win32":  # no advisory locks there
        return
    import fcntl

    try:
        (fcntl.flock if forks else fcntl.lockf)(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise InputError(
            str(path), "another process is writing to it", "wait for it to end, or name another"
        ) from None


class JsonLines:
    """Entries of a file, and more of them: each is on disk when `add` returns.

    A process that was killed may leave half a line at the end: it is left out, and cut off before the next
    entry is written. One process at a time may add.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[tuple[int, Any]] = []
        self._whole_bytes = 0
        self._file: FileIO | None = None
        if path.exists():
            self._read(read_bytes(path, most="EXPANDED_BYTES"))

    def _read(self, content: bytes) -> None:
        self._whole_bytes = content.rfind(b"\n") + 1
        for number, line in enumerate(content[: self._whole_bytes].splitlines(), 1):
            if not line.strip():
                continue
            try:
                self.entries.append((number, json.loads(line)))
            except (ValueError, RecursionError):
                raise InputError(
                    f"{self.path}: line {number}", "is not JSON", "delete the line, or name another file"
                ) from None

    def add(self, entries: Iterable[object]) -> None:
        """Append entries, all of them or none."""
        data = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        if not data:
            return
        try:
            file = self._opened()
            before = os.fstat(file.fileno()).st_size
            try:
                while data:
                    data = data[file.write(data) :]
            except BaseException:
                with contextlib.suppress(OSError):
                    file.truncate(before)
                raise
        except OSError as error:
            raise disk_error(self.path, error, "run again with --resume") from None

    def _opened(self) -> FileIO:
        if self._file is None:
            file = FileIO(self.path, "a+")
            try:
                _lock(file.fileno(), self.path, forks=False)
            except InputError:
                file.close()
                raise
            file.seek(self._whole_bytes)
            rest = file.read(max(os.fstat(file.fileno()).st_size - self._whole_bytes, 0))
            if rest and not rest.endswith(b"\n"):
                file.truncate(self._whole_bytes + rest.rfind(b"\n") + 1)
            self._file = file
        return self._file


_COUNTED = re.compile(r"(?:\d+x){1,2}(.+)", re.IGNORECASE)
"""GPUs of a file's kind, as platforms are named: ``8xmine.toml``."""
_DEEPEST = 3
"""Files that a file names are followed this far."""
_FOLLOWED = (".toml",)


def digest(*parts: object) -> str:
    """A short name for plain values: the same for the same values."""
    content = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


def files_read(value: object, folder: Path, depth: int = 0) -> dict[str, str]:
    """The files that texts inside a value name, relative to the working folder or to ``folder``, each with
    the digest of its content; TOML files are searched for further names. Of a folder all files count."""
    found: dict[str, str] = {}
    for text in _texts(value):
        for path in files_named(text, folder):
            if str(path) in found:
                continue
            content = path.read_bytes()
            found[str(path)] = hashlib.blake2b(content, digest_size=12).hexdigest()
            if depth < _DEEPEST and path.suffix in _FOLLOWED:
                names = re.findall(r"[\"']([^\"'\n]+)[\"']", content.decode(errors="replace"))
                found |= files_read(names, path.parent, depth + 1)
    return found


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def files_named(text: str, folder: Path) -> list[Path]:
    """The files of that name; of an assignment (``field=name``) those of the name assigned."""
    named = text.rpartition("=")[2].strip("\"' ") if "=" in text else text
    counted = _COUNTED.fullmatch(named)
    for name in (named, counted[1] if counted else ""):
        for path in (Path(name), folder / name) if name and len(name) < 4096 and "\0" not in name else ():
            with contextlib.suppress(OSError):
                if path.is_file():
                    return [path]
                if path.is_dir() and path.resolve() not in (Path.cwd(), *Path.cwd().parents):
                    return sorted(p for p in path.rglob("*") if p.is_file())
    return []
