"""CUDA streams and events of a GPU that is not there: they carry numbers and report what they are asked."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

Listener = Callable[[str, int, int], None]
"""Called with (what, stream, event): record, wait, event_sync, stream_sync or device_sync; -1 where none."""

DEFAULT_STREAM = 0
_stream_numbers = itertools.count(1)
_event_numbers = itertools.count(1)
_thread = threading.local()
_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    """From now on ``listener`` alone hears of streams and events."""
    _listeners[:] = [listener]


def _tell(what: str, stream: int = -1, event: int = -1) -> None:
    for listener in _listeners:
        listener(what, stream, event)


class Stream:
    """Stands in for torch.cuda.Stream."""

    def __init__(self, device: Any = None, priority: int = 0, *, stream_id: int | None = None, **_: Any):
        self.stream_id = next(_stream_numbers) if stream_id is None else stream_id
        self.device = torch.device("cuda", 0)
        self.device_index, self.device_type, self.priority = 0, 1, priority
        self._before: list[Stream] = []

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def wait_stream(self, other: Stream) -> None:
        event = Event()
        event.record(other)
        self.wait_event(event)

    def wait_event(self, event: Event) -> None:
        _tell("wait", self.stream_id, event.number)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        _tell("stream_sync", self.stream_id)

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> Stream:
        self._before.append(current_stream())
        _thread.stream = self
        return self

    def __exit__(self, *_: Any) -> None:
        _thread.stream = self._before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class Event:
    """Stands in for torch.cuda.Event and torch.Event."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = next(_event_numbers)

    def record(self, stream: Stream | None = None) -> None:
        _tell("record", (stream or current_stream()).stream_id, self.number)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _tell("event_sync", -1, self.number)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between two events; nothing ran, so a positive stand-in."""
        return 1.0


_default = Stream(stream_id=DEFAULT_STREAM)


def current_stream(device: Any = None) -> Stream:
    stream: Stream = getattr(_thread, "stream", _default)
    return stream


def default_stream(device: Any = None) -> Stream:
    return _default


def set_stream(stream: Stream | None) -> None:
    if stream is not None:
        _thread.stream = stream


class StreamContext:
    """Stands in for ``torch.cuda.stream(s)``."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._before: list[Stream] = []

    def __enter__(self) -> Stream | None:
        self._before.append(current_stream())
        set_stream(self.stream)
        return self.stream

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _thread.stream = self._before.pop()


def synchronize(*_: Any, **__: Any) -> None:
    """torch.cuda.synchronize()."""
    _tell("device_sync")
