"""What torch.cuda says about the GPUs of the chosen platform: count, name, capability, memory, streams."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch

from stepsight.capturing import streams
from stepsight.capturing.request import FakeGpu
from stepsight.program.allocator import CachingAllocator

CUDA = torch.device("cuda", 0)


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
        torch.cuda, Stream=streams.Stream, Event=streams.Event, ExternalStream=streams.Stream,
        StreamContext=streams.StreamContext, stream=streams.StreamContext,
        current_stream=streams.current_stream, default_stream=streams.default_stream,
        set_stream=streams.set_stream, synchronize=streams.synchronize,
        is_current_stream_capturing=lambda: False,
    )  # fmt: skip
    torch.Event = streams.Event
    torch.Stream = streams.Stream
    torch.cuda.streams.Stream, torch.cuda.streams.Event = streams.Stream, streams.Event


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
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        _set(
            accelerator, is_available=lambda: True, device_count=lambda: count,
            current_accelerator=lambda *_, **__: torch.device("cuda"), synchronize=streams.synchronize,
            current_device_index=lambda: 0, current_device_idx=lambda: 0, set_device_index=lambda *_: None,
            set_device_idx=lambda *_: None, current_stream=streams.current_stream,
            set_stream=streams.set_stream,
        )  # fmt: skip
