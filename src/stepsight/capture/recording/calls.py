"""What the recorder writes down: calls, collectives, waits. Plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stepsight.program.aten.call import AtenCall
from stepsight.program.job import Kernel


@dataclass(slots=True)
class CallRecord:
    """One library call on the fake GPU. ``mark`` ties it to the profiler's operators.

    ``graph`` numbers the compiled graph it belongs to, 0 outside; ``cuda_graph``: it replays one.
    ``kernels`` are those it launches where they are not the table's: what compilation made of them.
    """

    mark: int
    call: AtenCall
    stream: int
    graph: int = 0
    cuda_graph: bool = False
    kernels: tuple[Kernel, ...] | None = None


@dataclass(slots=True)
class CollectiveRecord:
    """A collective or a message. ``storages`` are those whose contents it makes."""

    mark: int
    kind: str
    bytes: float
    group: tuple[int, ...]
    stream: int
    storages: tuple[int, ...]
    dtype: str
    peer: int = -1
    sends: bool = True
    send_splits: tuple[float, ...] = ()
    receive_splits: tuple[float, ...] = ()
    in_backward: bool = False
    description: str = ""


@dataclass(slots=True)
class WaitRecord:
    """``Work.wait()`` on the collective with this mark; ``storage`` instead for a functional one."""

    stream: int
    collective: int = -1
    storage: int = -1


@dataclass(slots=True)
class SyncRecord:
    """A stream or event call: record, wait, event_sync, stream_sync, device_sync."""

    what: str
    stream: int
    event: int


Record = CallRecord | CollectiveRecord | WaitRecord | SyncRecord


@dataclass(slots=True)
class HostOperator:
    """A top-level operator as the profiler showed it."""

    name: str
    start_ns: int
    thread: int
    cuda_graph: bool = False


@dataclass(slots=True)
class StepRecords:
    """One step of one rank. ``operators`` maps a mark to its host operator; ``silent`` launched nothing."""

    records: list[Record] = field(default_factory=list)
    operators: dict[int, HostOperator] = field(default_factory=dict)
    silent: list[HostOperator] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
