"""Captures by the hundred: one process per capture, forked from one that has the libraries imported.

A capture changes its process's torch for good, so each needs a process of its own; importing torch and a
model library takes longer than most captures. This process must not have run a backward pass before.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stepsight.capturing.ranks import Capturing, answer_of
from stepsight.capturing.request import Request
from stepsight.capturing.step import CapturedStep
from stepsight.errors import StepsightError

NEEDED = tuple(f"stepsight.capturing.{name}" for name in ("worker", "session", "program", "fusion"))
ENVIRONMENT = {"KINETO_LOG_LEVEL": "99", "TOKENIZERS_PARALLELISM": "false", "PYTORCH_JIT": "0"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A step to capture, under a key of the caller's."""

    key: str
    name: str
    request: Request


@dataclass(frozen=True, slots=True)
class Outcome:
    """The step, or why there is none."""

    key: str
    step: CapturedStep | None = None
    problem: str = ""


def preload(libraries: Sequence[str]) -> None:
    """Import what captures need; a library that is missing fails in the captures that use it."""
    os.environ.update(ENVIRONMENT)
    import torch

    from stepsight.capturing.operators import define_vision_operators

    torch.set_num_threads(1)
    define_vision_operators()
    for name in (*NEEDED, *libraries):
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)


def captured(wanted: Iterable[Wanted], libraries: Sequence[str], workers: int = 0) -> Iterator[Outcome]:
    """Every step, in the order in which captures end."""
    preload(libraries)
    running: dict[int, Wanted] = {}
    waiting = iter(wanted)
    most = workers or os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="stepsight-forks-") as folder:
        while True:
            while len(running) < most and (one := next(waiting, None)) is not None:
                running[_fork(one, Path(folder))] = one
            if not running:
                return
            child, status = os.wait()
            one = running.pop(child)
            yield _outcome(one, Path(folder) / str(child), os.waitstatus_to_exitcode(status))


def _fork(one: Wanted, folder: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        code = _worker(one, folder / str(os.getpid()), parent)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _worker(one: Wanted, files: Path, parent: int) -> int:
    from stepsight.capturing.worker import run
    from stepsight.processes import end_with_parent

    end_with_parent(parent)
    with files.with_suffix(".log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    answer = str(files.with_suffix(".json"))
    return run(msgspec.structs.replace(one.request, answer=answer, parent=parent))


def _outcome(one: Wanted, files: Path, code: int) -> Outcome:
    try:
        answer = answer_of(files.with_suffix(".json"), code)
        step = Capturing(one.request, answers={0: answer}).step(one.name, [0])
    except StepsightError as error:
        last = files.with_suffix(".log").read_text(errors="replace").strip().splitlines()[-1:]
        return Outcome(one.key, problem=" | ".join([str(error), *last]))
    finally:
        for suffix in (".json", ".log"):
            files.with_suffix(suffix).unlink(missing_ok=True)
    return Outcome(one.key, step)
