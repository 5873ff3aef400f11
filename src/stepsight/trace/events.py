"""The events of a profiler trace: the fields stepsight reads, in one place for all versions.

Profilers since torch 1.8 spell categories and arguments differently; this module is
where those spellings end.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Any

import msgspec

NO_RAW = msgspec.Raw(b"")

HOST_OP, ANNOTATION, RUNTIME, GPU, SYNC = range(5)
"""What an event is, whatever its trace calls it."""


class Category(str, Enum):
    """Categories as profilers have spelt them: one object for all events of one. Others are `OTHER`."""

    OTHER = ""
    CPU_OP, OPERATOR = "cpu_op", "Operator"
    USER_ANNOTATION, GPU_USER_ANNOTATION = "user_annotation", "gpu_user_annotation"
    CUDA_RUNTIME, CUDA_DRIVER, OLD_RUNTIME = "cuda_runtime", "cuda_driver", "Runtime"
    HIP_RUNTIME, XPU_RUNTIME, PRIVATE_RUNTIME = "hip_runtime", "xpu_runtime", "privateuse1_runtime"
    KERNEL, GPU_MEMCPY, GPU_MEMSET = "kernel", "gpu_memcpy", "gpu_memset"
    OLD_KERNEL, OLD_MEMCPY, OLD_MEMSET = "Kernel", "Memcpy", "Memset"
    CUDA_SYNC = "cuda_sync"
    # not used, but traces hold many of them
    AC2G, FWDBWD, PYTHON_FUNCTION, OVERHEAD = "ac2g", "fwdbwd", "python_function", "overhead"
    ASYNC_GPU, ASYNC_CPU_TO_GPU, FORWARD_BACKWARD = "async_gpu", "async_cpu_to_gpu", "forward_backward"
    CPU_INSTANT, TRACE = "cpu_instant_event", "Trace"

    @classmethod
    def _missing_(cls, value: object) -> Category:
        return cls.OTHER


CATEGORIES = {
    Category.CPU_OP: HOST_OP, Category.OPERATOR: HOST_OP,
    Category.USER_ANNOTATION: ANNOTATION,
    Category.CUDA_RUNTIME: RUNTIME, Category.CUDA_DRIVER: RUNTIME, Category.OLD_RUNTIME: RUNTIME,
    Category.HIP_RUNTIME: RUNTIME, Category.XPU_RUNTIME: RUNTIME, Category.PRIVATE_RUNTIME: RUNTIME,
    Category.KERNEL: GPU, Category.GPU_MEMCPY: GPU, Category.GPU_MEMSET: GPU,
    Category.OLD_KERNEL: GPU, Category.OLD_MEMCPY: GPU, Category.OLD_MEMSET: GPU,
    Category.CUDA_SYNC: SYNC,
}  # fmt: skip


class Args(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "external_id": "External id",
        "sequence": "Sequence number",
        "record_id": "Record function id",
        "dims": "Input Dims",
        "old_dims": "Input dims",
        "types": "Input type",
        "concrete": "Concrete Inputs",
        "collective": "Collective name",
        "in_elements": "In msg nelems",
        "out_elements": "Out msg nelems",
        "group_size": "Group size",
        "group_name": "Process Group Name",
        "group_ranks": "Process Group Ranks",
    },
):
    """Arguments of an event; absent ones keep their defaults. Lists stay undecoded until asked for."""

    external_id: int = -1
    correlation: int = -1
    stream: int | str = -1
    device: int = -1
    bytes: int | str = -1
    grid: msgspec.Raw = NO_RAW
    block: msgspec.Raw = NO_RAW
    sequence: int = -1
    record_id: int = -1
    dims: msgspec.Raw = NO_RAW
    old_dims: msgspec.Raw = NO_RAW
    types: msgspec.Raw = NO_RAW
    concrete: msgspec.Raw = NO_RAW
    collective: str = ""
    in_elements: int = -1
    out_elements: int = -1
    group_size: int = -1
    group_name: str = ""
    group_ranks: str = ""
    dtype: str = ""
    cuda_sync_kind: str = ""
    wait_on_stream: int = -1
    wait_on_cuda_event_record_corr_id: int = -1
    kernel_backend: str = ""


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One event: a span on a host thread or a stream. ``ts`` and ``dur`` are µs."""

    ph: str = ""
    cat: Category = Category.OTHER
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Args = NO_ARGS

    @property
    def end(self) -> float:
        return self.ts + self.dur

    @property
    def kind(self) -> int:
        """`HOST_OP` … `SYNC`, or -1 for what stepsight does not use."""
        return CATEGORIES.get(self.cat, -1)

    def shapes(self) -> list[Any]:
        """Input sizes, one entry per input: [] for a scalar, nested for a tensor list."""
        return listed(self.sizes_text())

    def sizes_text(self) -> bytes:
        """Input sizes as the trace writes them."""
        args = self.args
        if args.dims is NO_RAW and args.old_dims is NO_RAW:
            return b""
        return bytes(args.dims) or bytes(args.old_dims)

    def types(self) -> list[Any]:
        """Input dtypes as the profiler names them ("float", "c10::BFloat16", "" for none)."""
        return decoded(self.args.types)

    def concrete(self) -> list[Any]:
        """Scalar inputs as text, where the trace has them."""
        return decoded(self.args.concrete)

    def grid(self) -> tuple[int, ...]:
        return _sides(bytes(self.args.grid))

    def block(self) -> tuple[int, ...]:
        return _sides(bytes(self.args.block))

    def copied_bytes(self) -> float:
        """Of a copy or a fill, which some profilers write as text; -1 where the trace does not say."""
        try:
            size = float(self.args.bytes)
        except ValueError:
            return -1.0
        return size if 0 <= size < MOST_BYTES else -1.0


def decoded(raw: msgspec.Raw) -> list[Any]:
    """A list that was left undecoded, not to be changed; empty where the event has none."""
    return listed(bytes(raw))


@lru_cache(maxsize=16384)
def listed(text: bytes) -> list[Any]:
    """The list that a text spells, not to be changed: layers and steps repeat the same few."""
    value = msgspec.json.decode(text) if text else []
    return value if isinstance(value, list) else []


MOST_BYTES = 2.0**53
"""No copy is larger; what is came from a damaged file."""


@lru_cache(maxsize=16384)
def _sides(text: bytes) -> tuple[int, ...]:
    return launch_sizes(listed(text))


MOST_BLOCKS = 2**31 - 1
"""The largest grid side that CUDA launches."""


def launch_sizes(sides: list[Any]) -> tuple[int, ...]:
    """Grid or block sides; none where one of them cannot be."""
    good = all(type(side) is int and 0 < side <= MOST_BLOCKS for side in sides)
    return tuple(sides) if good else ()
