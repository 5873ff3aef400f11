"""What torch.cuda says about the GPUs of the chosen platform: count, name, capability, memory; and its
streams and events, which carry numbers and report what they are asked."""

from __future__ import annotations

import contextlib
import itertools
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from stepsight.capturing.request import FakeGpu
from stepsight.program.allocator import CachingAllocator

CUDA = torch.device("cuda", 0)

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


def stream_number() -> int:
    """Of the current stream."""
    return current_stream().stream_id


def default_stream(device: Any = None) -> Stream:
    return _default


def set_stream(stream: Stream | None) -> None:
    if stream is not None:
        _thread.stream = stream


def stream_context(stream: Stream | None) -> contextlib.AbstractContextManager[Stream | None]:
    """Stands in for ``torch.cuda.stream(s)``."""
    return contextlib.nullcontext() if stream is None else stream


def synchronize(*_: Any, **__: Any) -> None:
    """torch.cuda.synchronize()."""
    _tell("device_sync")


def install_device(gpu: FakeGpu, count: int, allocator: CachingAllocator) -> None:
    """Make torch.cuda answer as a machine with ``count`` such GPUs would."""
    _install_streams()
    _install_properties(gpu, count)
    _install_memory(gpu, allocator)
    _install_quiet(count)
    _install_accelerator(count)


def _set(module: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(module, name, value)


def _install_streams() -> None:
    _set(
        torch.cuda, Stream=Stream, Event=Event, ExternalStream=Stream,
        StreamContext=stream_context, stream=stream_context,
        current_stream=current_stream, default_stream=default_stream,
        set_stream=set_stream, synchronize=synchronize,
        is_current_stream_capturing=lambda: False,
    )  # fmt: skip
    torch.Event = Event
    torch.Stream = Stream
    torch.cuda.streams.Stream, torch.cuda.streams.Event = Stream, Event


def _install_properties(gpu: FakeGpu, count: int) -> None:
    major, minor = gpu.capability
    properties = types.SimpleNamespace(
        name=gpu.name, major=major, minor=minor, total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.multiprocessors, is_integrated=0, is_multi_gpu_board=0, gcnArchName="",
        warp_size=32, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
        shared_memory_per_block=49152, shared_memory_per_block_optin=166912,
        shared_memory_per_multiprocessor=167936, L2_cache_size=gpu.l2_bytes, uuid="0", pci_bus_id=0,
    )  # fmt: skip
    _set(
        torch.cuda, is_available=lambda: True, is_initialized=lambda: True, _is_compiled=lambda: True,
        _lazy_init=lambda: None, init=lambda: None, _lazy_call=lambda *_, **__: None,
        device_count=lambda: count, _device_count_nvml=lambda: count, current_device=lambda: 0,
        set_device=lambda device: None, get_device_properties=lambda *_: properties,
        get_device_name=lambda *_: gpu.name, get_device_capability=lambda *_: gpu.capability,
        get_arch_list=lambda: [f"sm_{major}{minor}"], can_device_access_peer=lambda *_: True,
        is_bf16_supported=lambda *_, **__: gpu.capability >= (8, 0), is_tf32_supported=lambda: major >= 8,
        _get_device_index=lambda *_, **__: 0,
    )  # fmt: skip
    torch.cuda._utils._get_device_index = lambda *_, **__: 0
    device_context = _device_context()
    _set(torch.cuda, device=device_context, device_of=device_context, _DeviceGuard=device_context)
    torch.version.cuda = torch.version.cuda or "12.8"


def _device_context() -> type:
    class Device(contextlib.ContextDecorator):
        """``with torch.cuda.device(i)``: a process has one GPU here."""

        def __init__(self, device: Any = None) -> None:
            self.idx, self.prev_idx = 0, 0

        def __enter__(self) -> Device:
            return self

        def __exit__(self, *_: Any) -> None:
            return None

    return Device


def _install_memory(gpu: FakeGpu, memory: CachingAllocator) -> None:
    def stats(*_: Any, **__: Any) -> dict[str, int]:
        active = {"current": memory.active_bytes, "peak": memory.peak_active_bytes}
        reserved = {"current": memory.reserved_bytes, "peak": memory.peak_reserved_bytes}
        kinds = {"allocated": active, "active": active, "reserved": reserved}
        figures = {
            f"{k}_bytes.all.{when}": size for k, sizes in kinds.items() for when, size in sizes.items()
        }
        return {**figures, "num_alloc_retries": 0, "num_ooms": 0}

    for owner in (torch.cuda, torch.cuda.memory):
        _set(
            owner, memory_allocated=lambda *_: memory.active_bytes,
            max_memory_allocated=lambda *_: memory.peak_active_bytes,
            memory_reserved=lambda *_: memory.reserved_bytes, memory_cached=lambda *_: memory.reserved_bytes,
            max_memory_reserved=lambda *_: memory.peak_reserved_bytes,
            max_memory_cached=lambda *_: memory.peak_reserved_bytes,
            mem_get_info=lambda *_: (max(gpu.memory_bytes - memory.reserved_bytes, 0), gpu.memory_bytes),
            memory_stats=stats, memory_summary=lambda *_, **__: "", memory_snapshot=lambda *_, **__: [],
            reset_peak_memory_stats=lambda *_: memory.reset_peaks(),
            reset_max_memory_allocated=lambda *_: memory.reset_peaks(),
            reset_accumulated_memory_stats=lambda *_: None, empty_cache=lambda *_: memory.empty_cache(),
            set_per_process_memory_fraction=lambda *_: None, list_gpu_processes=lambda *_: "",
        )  # fmt: skip


def _install_quiet(count: int) -> None:
    """Random state, communicator, profiler ranges: nothing to do, or the CPU's answer."""

    def state(*_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    for owner in (torch.cuda, torch.cuda.random):
        _set(
            owner, manual_seed=lambda *_: None, manual_seed_all=lambda *_: None, seed=lambda: None,
            seed_all=lambda: None, initial_seed=lambda: 0, set_rng_state=lambda *_, **__: None,
            set_rng_state_all=lambda *_, **__: None, get_rng_state=state,
            get_rng_state_all=lambda: [state() for _ in range(count)],
        )  # fmt: skip
    _set(torch.cuda, ipc_collect=lambda: None, utilization=lambda *_: 0, temperature=lambda *_: 0,
         power_draw=lambda *_: 0, clock_rate=lambda *_: 0, memory_usage=lambda *_: 0)  # fmt: skip
    torch.cuda.nccl.version = lambda: (2, 21, 5)
    nothing = types.SimpleNamespace(
        range_push=lambda *_: 0, range_pop=lambda: 0, mark=lambda *_: None, range_start=lambda *_: 0,
        range_end=lambda *_: None, range=lambda *_, **__: contextlib.nullcontext(),
    )  # fmt: skip
    torch.cuda.nvtx = nothing
    torch._C._cuda_getDeviceCount = lambda: count
    absent: dict[str, Any] = {
        "_cuda_getCurrentRawStream": lambda *_: 0, "_cuda_resetPeakMemoryStats": lambda *_: None,
        "_cuda_clearCublasWorkspaces": lambda: None, "_cuda_emptyCache": lambda: None,
        "_cuda_getCurrentStream": lambda *_: (0, 0, 1), "_cuda_setDevice": lambda *_: None,
        "_cuda_getDevice": lambda: 0, "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_exchangeDevice": lambda *_: 0, "_cuda_maybeExchangeDevice": lambda *_: 0,
    }  # fmt: skip
    for name, function in absent.items():
        if not hasattr(torch._C, name):
            setattr(torch._C, name, function)
    # This build has no cuDNN, yet scripts ask for it and choose by the answer.
    torch.backends.cudnn.is_available = lambda: True
    torch.backends.cudnn.version = lambda: 90100
    torch.backends.cuda.is_built = lambda: True


def _install_accelerator(count: int) -> None:
    torch._C._get_accelerator = lambda *_: torch.device("cuda")
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    _set(
        torch.accelerator, is_available=lambda: True, device_count=lambda: count,
        current_accelerator=lambda *_, **__: torch.device("cuda"), synchronize=synchronize,
        current_device_index=lambda: 0, current_device_idx=lambda: 0, set_device_index=lambda *_: None,
        set_device_idx=lambda *_: None, current_stream=current_stream,
        set_stream=set_stream,
    )  # fmt: skip
