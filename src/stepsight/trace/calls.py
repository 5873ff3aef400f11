"""The kernels of a traced step with their sizes: library calls, lowered and matched with what was launched.

An operator with recorded inputs becomes an `AtenCall`; `lower` gives the kernels that such a call launches,
the same as for a captured script. These are matched with the kernels that the trace shows. Several that share
one lowered kernel (a product and its helpers, a convolution's two gradients, a list that is too long for one
launch) take its time in proportion to what each took.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod

from stepsight.dtypes import dtype_bytes
from stepsight.overheads.tables import op_class
from stepsight.program.aten.call import Precision
from stepsight.program.aten.products import attention_kernel
from stepsight.program.aten.table import lower
from stepsight.program.job import Kernel, Sizing
from stepsight.program.observation import Observation
from stepsight.trace.events import Event
from stepsight.trace.kernel_names import (
    PRODUCT,
    STREAM,
    computes_indices,
    counted,
    kind_of_family,
    kinds_of,
    on_tensor_cores,
    short_name,
    unsized,
)
from stepsight.trace.launches import NO_OP, Launch
from stepsight.trace.link import LinkedTrace, is_collective_kernel
from stepsight.trace.lookups import Lookups
from stepsight.trace.operators import fact, tensors_of, traced_call

_FOLLOWING = 24
"""Operators after a call that are looked at for the size of its result."""
_OTHER_COMMUNICATION = re.compile(
    r"multimem_|symm_mem::|nvshmem|cross_device_reduce|deep_ep|(one|two)_?shot_all_?reduce|custom_all_?reduce",
    re.IGNORECASE,
)
"""Communication by other libraries than NCCL: kernels that wait for other GPUs, whatever their inputs are."""
_ATTENTION_OP = re.compile(r"flash_?att|scaled_dot_product|efficient_attention|fmha", re.IGNORECASE)
_FUSED = {
    "ScaledUpperTriangMaskedSoftmax": ("softmax", "causal"),
    **dict.fromkeys(("ScaledMaskedSoftmax", "ScaledSoftmax"), ("softmax", "")),
    **dict.fromkeys(
        (
            "FusedLayerNormAffineFunction",
            "FusedLayerNormFunction",
            "FastLayerNormFN",
            "FusedRMSNormAffineFunction",
        ),
        ("layer_norm", ""),
    ),
}
"""Autograd functions of Megatron-LM and apex: the family of their kernel, and its variant. They work on rows
of their input; the profiler records a gradient under the same name and "Backward"."""
_IN_PART = re.compile(r"slice|split|select|embedding|index")
"""What Inductor names fused kernels by when they read or write a part of a tensor."""
_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw|batched_transpose", re.IGNORECASE)
Sized = tuple[Kernel | None, int]
"""A launched kernel's work, and the number of the group of kernels that share it."""


@dataclass(frozen=True)
class Call:
    """One operator and its kernels in launch order."""

    op: Event
    kernels: tuple[Event, ...]
    following: tuple[Event, ...] = ()
    """The operators that begin next on its thread: they read what it made."""

    @cached_property
    def sized(self) -> list[tuple[Kernel | None, float]]:
        """Of each kernel, its work and its share of that work's time; None where nothing states it."""
        groups = self._groups()
        total: dict[int, float] = defaultdict(float)
        size: dict[int, int] = defaultdict(int)
        for (_, group), event in zip(groups, self.kernels, strict=True):
            total[group] += event.dur
            size[group] += 1
        return [
            (kernel, event.dur / total[group] if total[group] > 0 else 1.0 / size[group])
            for (kernel, group), event in zip(groups, self.kernels, strict=True)
        ]

    def _groups(self) -> Sequence[Sized]:
        op, names = self.op, tuple(event.name for event in self.kernels)
        if any(map(_communicates, (op.name, *names))):
            return [(None, i) for i in range(len(names))]
        result = self._result() if "conv" in op.name or "pool" in op.name else ()
        lowered = _lowered(op, names, result)
        return _matched(lowered, names)

    def _result(self) -> tuple[int, ...]:
        """What the first operator after it reads that has an image's sizes."""
        inputs = [t.shape for t in tensors_of(self.op) if len(t.shape) == 4]
        if not inputs:
            return ()
        made = int("transpose" in self.op.name)  # where filters list what they make
        channels = inputs[1][made] if "conv" in self.op.name and len(inputs) > 1 else inputs[0][1]
        for op in self.following:
            for tensor in tensors_of(op):
                if len(tensor.shape) == 4 and tensor.shape[:2] == (inputs[0][0], channels):
                    return tensor.shape
        return ()


class Calls:
    """The kernels of a trace by the operator that launched them; a call is sized when first asked for."""

    def __init__(self, linked: LinkedTrace) -> None:
        self.linked = linked
        self._made: dict[int, Call] = {}
        known: dict[int, int] = {}
        self._members: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._place: dict[tuple[int, int], tuple[int, int]] = {}
        """By launch and position in it: the operator, and which of its kernels this is."""
        for launch in linked.launches:
            if launch.op not in known:
                known[launch.op] = launching_op(linked, launch)
            op = known[launch.op]
            for position, event in enumerate(launch.gpu):
                if op != NO_OP and _computes(event):
                    members = self._members[op]
                    self._place[launch.index, position] = op, len(members)
                    members.append((launch.index, position))

    @cached_property
    def lookups(self) -> Lookups:
        """The embedding lookups of the trace."""
        return Lookups(self.linked)

    def kernel(
        self, launch: Launch, position: int, stream: str, late_us: float = 0.0, waited_us: float = 0.0
    ) -> tuple[Kernel, Observation]:
        """A launched kernel with its sizes, and what the trace measured of it."""
        event = launch.gpu[position]
        made, share = _copy(event), 1.0
        if made is None:
            made, share = self.lookups.kernel(launch, event)
        op = ""
        if made is None and (launch.index, position) in self._place:
            at, which = self._place[launch.index, position]
            op = self.linked.ops[at].name
            made, share = self._call(at).sized[which]
        if made is None:
            share = 1.0
            made = (None if _communicates(event.name) else counted(event, op)) or unsized(event, op)
        observed = Observation(event.dur, late_us, waited_us, share, opaque=made.sizing is Sizing.UNKNOWN)
        return replace(made, stream=stream, operator=made.operator or short_name(event.name)), observed

    def _call(self, op: int) -> Call:
        if op not in self._made:
            ops, launches = self.linked.ops, self.linked.launches
            kernels = tuple(launches[i].gpu[position] for i, position in self._members[op])
            later = ops[op + 1 : op + 1 + _FOLLOWING]
            following = tuple(e for e in later if e.tid == ops[op].tid and e.ts >= ops[op].end)
            self._made[op] = Call(ops[op], kernels, following)
        return self._made[op]


def launching_op(linked: LinkedTrace, launch: Launch) -> int:
    """Where the innermost operator with sizes that computes stands; views and allocations launch nothing."""
    innermost, op = NO_OP, launch.op
    while op != NO_OP:
        event = linked.ops[op]
        if op_class(event.name) != "view" or event.name == "aten::to":
            if event.shapes():
                return op
            innermost = op if innermost == NO_OP else innermost
        op = linked.parent[op]
    return innermost if innermost != NO_OP else launch.op


def sized_alone(op: Event, kernel: Event) -> Kernel | None:
    """One launched kernel by its operator's recorded inputs, without the others of its call."""
    (made, _), *_ = Call(op, (kernel,))._groups()
    return made


def _computes(event: Event) -> bool:
    return not is_collective_kernel(event) and not event.name.startswith(("Memcpy", "Memset", "Copy"))


@lru_cache(maxsize=8192)
def _communicates(name: str) -> bool:
    return _OTHER_COMMUNICATION.search(name) is not None


def _lowered(op: Event, names: tuple[str, ...], result: tuple[int, ...]) -> tuple[Kernel, ...]:
    """The kernels that the operator's call launches; none where no table knows it."""
    if op.args.kernel_backend == "triton" or (len(names) == 1 and names[0].startswith("triton")):
        return _triton(op)
    products = [name for name in names if PRODUCT in kinds_of(name)]
    tf32 = any(map(on_tensor_cores, products))
    strided = not products and any(map(computes_indices, names))
    if _ATTENTION_OP.search(op.name):
        return _attention(op)
    if op.name.removesuffix("Backward") in _FUSED:
        return _fused(op)
    call = traced_call(op, strided=strided, result=result)
    try:
        kernels = lower(call, Precision(tf32, tf32)).kernels if call else ()
    except (KeyError, IndexError, ValueError, TypeError):
        return ()  # inputs that the call's schema does not explain
    if products:
        reordered = any(_LAYOUT.search(name) for name in names)
        kernels = tuple(_as_launched(k, reordered=reordered) for k in kernels)
    return kernels


def _as_launched(kernel: Kernel, *, reordered: bool) -> Kernel:
    """A convolution with the copies into the layout of tensor cores that cuDNN names."""
    if not kernel.family.startswith("conv"):
        return kernel
    dims = tuple((key, float(reordered) if key == "reordered" else value) for key, value in kernel.dims)
    return replace(kernel, dims=dims)


def _triton(op: Event) -> tuple[Kernel, ...]:
    """A compiled kernel: it touches once what it lists, inputs and results, and no more of each than the
    points that it iterates over, which Inductor passes as numbers. Without them one that picks or slices
    states no size."""
    tensors = tensors_of(op)
    if not tensors or (not op.concrete() and _IN_PART.search(op.name)):
        return ()
    numbers = [int(x) for x in op.concrete() if isinstance(x, str) and x.isdigit() and 0 < int(x) < 2**48]
    points = prod(numbers) if numbers else max(t.elements for t in tensors)
    touched = [min(t.elements, points) * dtype_bytes(t.dtype) for t in tensors]
    largest = max(range(len(tensors)), key=lambda i: touched[i])
    written = touched[largest] if len(tensors) > 1 else 0
    return (
        Kernel.of(
            "elementwise", tensors[largest].dtype, operator=op.name,
            elements=max(min(tensors[largest].elements, points), 1),
            read_bytes=float(sum(touched) - written), write_bytes=float(max(written, 1)),
        ),
    )  # fmt: skip


def _fused(op: Event) -> tuple[Kernel, ...]:
    family, variant = _FUSED[op.name.removesuffix("Backward")]
    rows = next((t for t in tensors_of(op) if t.elements), None)
    if rows is None or not rows.shape:
        return ()
    backward = "_backward" if op.name.endswith("Backward") else ""
    cols = rows.shape[-1]
    return (
        Kernel.of(family + backward, rows.dtype, operator=variant, rows=rows.elements // cols, cols=cols),
    )


def _attention(op: Event) -> tuple[Kernel, ...]:
    """Fused attention: [B, H, S, D] as torch has it, [B, S, H, D] as flash-attn has it, [tokens, H, D] if
    packed, with the sequences' limits among the inputs."""
    tensors, family = tensors_of(op), "attention"
    if re.search(r"backward|bwd", op.name, re.IGNORECASE):
        family = "attention_backward"
    shaped = [t for t in tensors if len(t.shape) >= 3 and t.dtype in ("fp16", "bf16", "fp32")]
    at = 1 if family == "attention_backward" and len(shaped) > 2 else 0
    if len(shaped) < at + 2:
        return ()
    q, k = shaped[at], shaped[at + 1]
    causal = "True" in op.concrete()
    if len(q.shape) == 3:
        limits = next((t.elements for t in tensors if t.dtype.startswith("int") and len(t.shape) == 1), 2)
        batch = max(limits - 1, 1)
        stated = [x for x in op.concrete() if isinstance(x, str) and x.isdigit() and int(x) > 1]
        if stated and str(q.shape[0] // batch) not in stated:
            return ()  # sequences of different length, of which the trace records the longest
        q, k = (fact((batch, t.shape[1], max(t.shape[0] // batch, 1), t.shape[2]), t.dtype) for t in (q, k))
        causal = True
    elif "scaled_dot_product" not in op.name:
        q, k = (fact((t.shape[0], t.shape[2], t.shape[1], t.shape[3]), t.dtype) for t in (q, k))
    kernel = attention_kernel(family, q, k, causal, op.name)
    return (replace(kernel, dims=(*kernel.dims, ("window", float(_window(op))))),)


def _window(op: Event) -> int:
    """The sliding window of a flash-attn call: the number after its ``causal`` flag; 0 for none."""
    for flag, size in pairwise(str(x) for x in op.concrete()):
        if flag in ("True", "False") and size.isdigit() and 0 < int(size) < 2**31:
            return int(size)
    return 0


def _matched(lowered: tuple[Kernel, ...], names: tuple[str, ...]) -> list[Sized]:
    """Which lowered kernel each launched one is: by kind, in order; where their numbers differ, those of a
    kind share the work of that kind. What is left on both sides belongs together; helpers of a product
    belong to it."""
    found: dict[int, Sized] = {}
    open_kernels = list(range(len(names)))
    left: list[Kernel] = []
    group = 0
    for kind in dict.fromkeys(kind_of_family(k.family) for k in lowered):
        work = [k for k in lowered if kind_of_family(k.family) == kind]
        mine = [i for i in open_kernels if kind in kinds_of(names[i])]
        if not mine:
            left += work
            continue
        for at, kernel in _paired(work, mine):
            found[at] = kernel, group + (at if len(work) == len(mine) else 0)
        group += len(names)
        open_kernels = [i for i in open_kernels if i not in found]
    if left and open_kernels:
        for at, kernel in _paired(left, open_kernels):
            found[at] = kernel, group + (at if len(left) == len(open_kernels) else 0)
    elif open_kernels:
        product = next((sized for i, sized in found.items() if PRODUCT in kinds_of(names[i])), None)
        for i in open_kernels:
            helps = product is not None and not counted_kind(names[i])
            found[i] = product if helps and product else (None, -1 - i)
    return [found.get(i, (None, -1 - i)) for i in range(len(names))]


def counted_kind(name: str) -> bool:
    """Whether a kernel's own grid states its elements."""
    return kinds_of(name)[:1] in ((STREAM,), ("fill",))


def _paired(work: list[Kernel], kernels: list[int]) -> list[tuple[int, Kernel]]:
    if len(work) == len(kernels):
        return list(zip(kernels, work, strict=True))
    whole = work[0] if len(work) == 1 else _together(work)
    return [(i, whole) for i in kernels]


def _together(work: list[Kernel]) -> Kernel:
    """Several kernels as one that stands for all of them."""
    counts: dict[Kernel, int] = defaultdict(int)
    for kernel in work:
        counts[kernel] += 1
    return replace(work[0], parts=tuple(counts.items()))


def _copy(event: Event) -> Kernel | None:
    """Copies and fills by the runtime, which state their bytes."""
    name, size = event.name, event.copied_bytes()
    if name.startswith("Memset"):
        return Kernel.of("fill", operator="memset", bytes=max(size, 1.0))
    if (
        not name.startswith(("Memcpy", "CopyHostToDevice", "CopyDeviceToHost", "CopyDeviceToDevice"))
        or size < 0
    ):
        return None
    compact = name.replace(" ", "")
    pageable = "_pageable" if "Pageable" in name else ""
    if "HtoD" in compact or "HostToDevice" in compact:
        return Kernel.of("copy_h2d", operator=f"memcpy_h2d{pageable}", bytes=size)
    if "DtoH" in compact or "DeviceToHost" in compact:
        return Kernel.of("copy_d2h", operator=f"memcpy_d2h{pageable}", bytes=size)
    return Kernel.of("copy_d2d", operator="memcpy_d2d", bytes=size)
