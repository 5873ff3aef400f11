"""From a launched kernel and the operator that launched it to a `Kernel` the models can time.

Sizes come from the operator's recorded inputs. Where a trace has none, they are read off
the launch grid (`unrecorded`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod

from stepsight.program.job import Kernel, Sizing
from stepsight.program.observation import Observation
from stepsight.trace.linking.launches import Launch
from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.calls import Call
from stepsight.trace.sizing.convolutions import conv_kernel, is_convolution
from stepsight.trace.sizing.facts import Facts
from stepsight.trace.sizing.lookup_map import lookup_kernel
from stepsight.trace.sizing.matmul_map import GEMM_KERNEL, GEMM_OPS, gemm_by_scalars, gemm_kernel
from stepsight.trace.sizing.sort_map import sort_kernel
from stepsight.trace.sizing.tensors import tensors_of
from stepsight.trace.sizing.unrecorded import size_spread, sized_by_grid
from stepsight.trace.sizing.vector_map import describes, vector_kernel

Mapped = Kernel | None
_OFF_GRIDS = (Sizing.COUNTED, Sizing.GRID)
_OTHER_COMMUNICATION = re.compile(
    r"multimem_|symm_mem::|nvshmem|cross_device_reduce|deep_ep|(one|two)_?shot_all_?reduce|custom_all_?reduce",
    re.I,
)
"""Communication by other libraries than NCCL: kernels that wait for other GPUs, whatever their inputs are."""
SPLIT: Mapping[str, tuple[str, ...]] = {
    "elementwise": ("elements", "read_bytes", "write_bytes"),
    "transpose": ("elements",),
    "fill": ("bytes",),
    "reduce": ("cols",),
    "concat": ("read_bytes", "write_bytes", "inputs"),
    "optimizer": ("elements", "read_bytes", "write_bytes", "tensors"),
}
"""Families that come in parts when large, and which of their sizes a part shares."""


def kernel_of(
    facts: Facts, launch: Launch, event: Event, stream: str, late_us: float = 0.0, waited_us: float = 0.0
) -> tuple[Kernel, Observation]:
    """The kernel's family and sizes, and what the trace measured of it; an operator without a rule gives
    "other" with its traffic."""
    call = facts.calls.of(launch)
    mapped, share = _copy(event), 1.0
    if mapped is None and call is not None:
        mapped, share = _by_call(facts, launch, call, event)
    unsure = 0.0
    if mapped is None:
        mapped = sized_by_grid(facts, call, event)
        if mapped.sizing in _OFF_GRIDS and not event.grid():
            mapped = replace(mapped, sizing=Sizing.UNKNOWN)  # a trace without launch grids
        unsure = size_spread(mapped, event)
    opaque = mapped.sizing is Sizing.UNKNOWN and RULES.on("opaque_kernels")
    operator = mapped.operator or short_name(event.name)
    observed = Observation(event.dur, late_us, waited_us, share, opaque=opaque)
    return replace(mapped, stream=stream, operator=operator, size_spread=unsure), observed


def _by_call(facts: Facts, launch: Launch, call: Call, event: Event) -> tuple[Mapped, float]:
    """The kernel by the recorded inputs of its call, as far as they are its own, and its share of the
    call's time."""
    op, tensors = call.op, call.tensors
    if _communicates(event.name) or _communicates(op.name):
        return None, 1.0
    mapped = lookup_kernel(facts, launch, op, event) or sort_kernel(
        event, op, tensors, call.kernels, facts.gpu
    )
    if mapped:
        return mapped, 1.0
    if not tensors:
        return gemm_by_scalars(op) or _concat_by_reader(facts.linked, launch, event), 1.0
    if is_convolution(op):
        return conv_kernel(call, event) or (None, 1.0)
    return _by_inputs(call, event), 1.0


def _by_inputs(call: Call, event: Event) -> Mapped:
    op = call.op
    alone = len(call.kernels) == 1 or not RULES.on("main_kernel")
    if not alone and call.is_region and not describes(op, event):
        return None
    if _is_product(event.name) or op.name.split("::")[-1] in GEMM_OPS:
        made = gemm_kernel(op, event)
        if made:
            return made
    if not alone and event.name != call.main and not describes(op, event):
        return None
    return _share_of(call, event, vector_kernel(op, call.tensors, event))


@lru_cache(maxsize=8192)
def _communicates(name: str) -> bool:
    return bool(_OTHER_COMMUNICATION.search(name))


@lru_cache(maxsize=8192)
def _is_product(kernel: str) -> bool:
    return bool(GEMM_KERNEL.search(kernel))


def _share_of(call: Call, event: Event, mapped: Mapped) -> Mapped:
    """One of the like kernels of a call does its share of the work: PyTorch splits what cannot be indexed
    with 32 bits and lists that do not fit into a kernel's arguments."""
    if mapped is None or mapped.family not in SPLIT:
        return mapped
    alike = call.alike(event)
    if len(alike) == 1:
        return mapped
    whole = sum(prod(e.grid() or (1,)) for e in alike)
    part = prod(event.grid() or (1,)) / whole
    sizes = {key: value * part if key in SPLIT[mapped.family] else value for key, value in mapped.dims}
    return replace(mapped, dims=tuple(sizes.items()))


@lru_cache(maxsize=8192)
def short_name(kernel: str) -> str:
    """A kernel's name without its template arguments and parameters."""
    name = re.sub(r"^void\s+", "", kernel).replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name, maxsplit=1)[0][:80]


def _copy(event: Event) -> Mapped:
    name = event.name
    size = event.copied_bytes()
    if name.startswith("Memset"):
        return Kernel.of("fill", operator="memset", bytes=max(size, 1.0))
    if (
        not name.startswith(("Memcpy", "CopyHostToDevice", "CopyDeviceToHost", "CopyDeviceToDevice"))
        or size < 0
    ):
        return None
    compact = name.replace(" ", "")
    if "HtoD" in compact or "HostToDevice" in compact:
        return Kernel.of("copy_h2d", operator=_host_memory("memcpy_h2d", name), bytes=size)
    if "DtoH" in compact or "DeviceToHost" in compact:
        return Kernel.of("copy_d2h", operator=_host_memory("memcpy_d2h", name), bytes=size)
    return Kernel.of("copy_d2d", operator="memcpy_d2d", bytes=size)


def _host_memory(name: str, event_name: str) -> str:
    return f"{name}_pageable" if "Pageable" in event_name else name


def _concat_by_reader(linked: LinkedTrace, launch: Launch, event: Event) -> Mapped:
    """A concatenation whose inputs were not recorded: an operator around it lists them, or the next
    one reads what it wrote."""
    if "CatArray" not in event.name:
        return None
    inputs = float((*event.grid(), 1, 1)[1])
    size = next((total for e in linked.chain(launch.op) if (total := _listed(e))), 0)
    for op in linked.ops[launch.op + 1 : launch.op + 12]:
        if size:
            break
        if op.tid == linked.ops[launch.op].tid:
            size = max((t.bytes for t in tensors_of(op) if t.elements > 1), default=0)
    return (
        Kernel.of("concat", operator="aten::cat", read_bytes=size, write_bytes=size, inputs=inputs)
        if size
        else None
    )


def _listed(op: Event) -> int:
    return sum(t.bytes for t in tensors_of(op))
