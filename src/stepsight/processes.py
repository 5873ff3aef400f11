"""Processes that end when they should: with whoever started them, and tidily when asked to."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1
"""From Linux's prctl.h."""
PATIENCE_S = 5.0
"""How long a process may take to end when asked, before it is killed."""


def end_with_parent(parent: int | None = None) -> None:
    """Let Linux kill this process when its parent is gone, also while it is stopped or deep in a library.

    ``parent`` is the parent's number: a parent that was gone before this call is noticed as well.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def as_pool_worker(parent: int) -> None:
    """A worker of a pool: ends with its parent, which alone answers the keyboard."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent)


def end_tidily_on_signals() -> None:
    """A request to end (SIGTERM, a closed terminal) unwinds like an interrupt: nothing is left behind."""
    names = [n for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n)]
    for name in names:
        number = getattr(signal, name)
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup's choice stays
            signal.signal(number, _unwind)


def _unwind(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def end_group(leader: int) -> None:
    """End what is left of the process group that ``leader`` started: loaders and servers of a script."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process: ask first, then kill."""
    process.terminate()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
