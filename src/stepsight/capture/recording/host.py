"""Host operators as torch's CPU profiler names them, tied to the recorded calls by marks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stepsight.capture.recording.calls import HostOperator
from stepsight.capture.recording.mode import MARK

_ANNOTATIONS = (
    "Python",
    "DistributedDataParallel",
    "FSDP",
    "ProfilerStep",
    "##",
    "nccl:",
    "PyTorch",
    "FullyShard",
)
"""Ranges that frameworks put around operators; a profile's operators are the ones inside."""
OPTIMIZER = "Optimizer."


@dataclass(slots=True)
class _Open:
    start: int
    end: int
    name: str
    transparent: bool


class HostProfile:
    """Runs the CPU profiler between `start` and `stop`."""

    def __init__(self) -> None:
        self._profiler: Any = None

    def start(self) -> None:
        self._profiler = torch.autograd.profiler.profile(use_cpu=True, use_kineto=True)
        self._profiler.__enter__()

    def stop(self) -> tuple[dict[int, HostOperator], list[HostOperator]]:
        """Mark → its top-level operator; and the operators that launched nothing."""
        self._profiler.__exit__(None, None, None)
        events = self._profiler.kineto_results.events()
        by_thread: dict[int, list[tuple[int, int, str, bool]]] = {}
        for event in events:
            name = event.name()
            annotation = name.startswith(_ANNOTATIONS) or (
                hasattr(event, "is_user_annotation") and event.is_user_annotation()
            )
            transparent = annotation and not name.startswith((OPTIMIZER, MARK))
            by_thread.setdefault(event.start_thread_id(), []).append(
                (event.start_ns(), -event.duration_ns(), name, transparent)
            )
        marked: dict[int, HostOperator] = {}
        tops: list[HostOperator] = []
        for thread, rows in by_thread.items():
            _nest(thread, sorted(rows), marked, tops)
        launched = {(op.thread, op.start_ns) for op in marked.values()}
        return marked, [op for op in tops if (op.thread, op.start_ns) not in launched]


def _nest(
    thread: int, rows: list[tuple[int, int, str, bool]], marked: dict[int, HostOperator],
    tops: list[HostOperator],
) -> None:  # fmt: skip
    """Walk the ranges of one thread; the outermost operator around a mark owns it."""
    stack: list[_Open] = []
    for start, negative, name, transparent in rows:
        while stack and stack[-1].end <= start:
            stack.pop()
        end = start - negative
        if name.startswith(MARK):
            owner = next((x for x in stack if x.name.startswith(OPTIMIZER)), None)
            owner = owner or next((x for x in stack if not x.transparent), None)
            if owner is not None:
                marked[int(name[len(MARK) :])] = HostOperator(owner.name, owner.start, thread)
            stack.append(_Open(start, end, name, True))
            continue
        inside_mark = any(x.name.startswith(MARK) for x in stack)
        if not inside_mark and not transparent and all(x.transparent for x in stack):
            tops.append(HostOperator(name, start, thread))
        stack.append(_Open(start, end, name, transparent or inside_mark))
