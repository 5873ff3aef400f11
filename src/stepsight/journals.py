"""A file of JSON lines that grows while a command works, so that an interrupted one can be taken up again."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import Any

from stepsight.documents import disk_error
from stepsight.errors import InputError
from stepsight.inputs import read_bytes


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
            _lock(file, self.path)
            file.seek(self._whole_bytes)
            rest = file.read(max(os.fstat(file.fileno()).st_size - self._whole_bytes, 0))
            if rest and not rest.endswith(b"\n"):
                file.truncate(self._whole_bytes + rest.rfind(b"\n") + 1)
            self._file = file
        return self._file


def _lock(file: FileIO, path: Path) -> None:
    """Until this process ends; processes that it forks do not hold it."""
    if sys.platform == "win32":  # no advisory locks there
        return
    import fcntl

    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.close()
        raise InputError(
            str(path), "another process is writing to it", "wait, or name another file"
        ) from None
