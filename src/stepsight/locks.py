"""One writer at a time in a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepsight.errors import InputError

FILE = ".stepsight.lock"


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder; a second process is refused. The system lets go of it when this process ends."""
    if sys.platform == "win32":  # no advisory locks there
        yield
        return
    import fcntl

    descriptor = os.open(folder / FILE, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                str(folder), "another process is writing to it", "wait for it to end, or name another folder"
            ) from None
        yield
    finally:
        os.close(descriptor)
