"""From a launched kernel and the operator that launched it to a `Kernel` the models can time.

Sizes come from the operator's recorded inputs. Where a trace has none, they are read off
the launch grid (`grid_sizes`). The kernel's duration is kept beside, for replay alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from stepsight.overheads.operators import op_class
from stepsight.program.job import Kernel
from stepsight.trace.linking.launches import Launch
from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event
from stepsight.trace.sizing.guessing.grid_sizes import sized_by_grid
from stepsight.trace.sizing.guessing.size_spread import size_spread
from stepsight.trace.sizing.lookup_map import lookup_kernel
from stepsight.trace.sizing.matmul_map import (
    GEMM_KERNEL,
    GEMM_OPS,
    LAYOUT,
    conv_kernel,
    gemm_by_scalars,
    gemm_kernel,
)
from stepsight.trace.sizing.tensors import tensors_of
from stepsight.trace.sizing.vector_map import vector_kernel

Mapped = Kernel | None
_SPLIT: Mapping[str, tuple[str, ...]] = {
    "elementwise": ("elements", "read_bytes", "write_bytes"),
    "transpose": ("elements",),
    "fill": ("bytes",),
    "reduce": ("cols",),
}
"""Families that come in parts when large, and which of their sizes a part shares."""
_MOST_PARTS = 16


def kernel_of(linked: LinkedTrace, launch: Launch, event: Event, stream: str) -> Kernel:
    """The kernel's family and sizes; an operator without a rule gives "other" with its traffic."""
    op = launching_op(linked, launch)
    mapped = _copy(event)
    if mapped is None and op is not None:
        mapped = _share_of(linked, launch, _by_operator(linked, launch, op, event))
    unsure = 0.0
    if mapped is None:
        mapped = sized_by_grid(linked, launch, op, event)
        unsure = size_spread(mapped, event)
    name = mapped.name or short_name(event.name)
    return Kernel(mapped.family, mapped.dims, mapped.dtype, stream, name, mapped.lookup, event.dur, unsure)


def _share_of(linked: LinkedTrace, launch: Launch, mapped: Mapped) -> Mapped:
    """One of the like kernels that an operator launched in a row does its share of the work: PyTorch
    splits what cannot be indexed with 32 bits."""
    if mapped is None or mapped.family not in _SPLIT or mapped.name == LAYOUT:
        return mapped
    near = (*linked.before(launch, _MOST_PARTS), *linked.after(launch, _MOST_PARTS))
    name = launch.gpu[0].name
    parts = 1 + sum(x.op == launch.op and x.gpu[0].name == name for x in near)
    if parts == 1:
        return mapped
    sizes = {key: value / parts if key in _SPLIT[mapped.family] else value for key, value in mapped.dims}
    return replace(mapped, dims=tuple(sizes.items()))


def launching_op(linked: LinkedTrace, launch: Launch) -> Event | None:
    """The innermost operator with sizes that computes; views and allocations launch nothing."""
    chain = list(linked.chain(launch.op))
    computing = [e for e in chain if op_class(e.name) != "view" or e.name == "aten::to"]
    for event in computing:
        if event.shapes():
            return event
    return computing[0] if computing else (chain[0] if chain else None)


def short_name(kernel: str) -> str:
    """A kernel's name without its template arguments and parameters."""
    name = re.sub(r"^void\s+", "", kernel).replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name, maxsplit=1)[0][:80]


def _copy(event: Event) -> Mapped:
    name = event.name
    size = float(event.args.bytes) if not isinstance(event.args.bytes, str) else float(event.args.bytes or -1)
    if name.startswith("Memset"):
        return Kernel.of("fill", name="memset", bytes=max(size, 1.0))
    if (
        not name.startswith(("Memcpy", "CopyHostToDevice", "CopyDeviceToHost", "CopyDeviceToDevice"))
        or size < 0
    ):
        return None
    compact = name.replace(" ", "")
    if "HtoD" in compact or "HostToDevice" in compact:
        return Kernel.of("copy_h2d", name=_host_memory("memcpy_h2d", name), bytes=size)
    if "DtoH" in compact or "DeviceToHost" in compact:
        return Kernel.of("copy_d2h", name=_host_memory("memcpy_d2h", name), bytes=size)
    return Kernel.of("copy_d2d", name="memcpy_d2d", bytes=size)


def _host_memory(name: str, event_name: str) -> str:
    return f"{name}_pageable" if "Pageable" in event_name else name


def _by_operator(linked: LinkedTrace, launch: Launch, op: Event, event: Event) -> Mapped:
    mapped = lookup_kernel(linked, launch, op, event)
    if mapped:
        return mapped
    tensors = tensors_of(op)
    if not tensors:
        return gemm_by_scalars(op) or _concat_by_reader(linked, launch, event)
    name = op.name.split("::")[-1]
    made = conv_kernel(op, event)
    if made is None and (GEMM_KERNEL.search(event.name) or name in GEMM_OPS):
        made = gemm_kernel(op, event)
    if made:
        return made
    return vector_kernel(op, tensors, event)


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
        Kernel.of("concat", name="aten::cat", read_bytes=size, write_bytes=size, inputs=inputs)
        if size
        else None
    )


def _listed(op: Event) -> int:
    return sum(t.bytes for t in tensors_of(op))
