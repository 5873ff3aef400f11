"""Sizes where a trace recorded no shapes: read off the launch grid and the kernel's own name.

PyTorch's element-wise kernels handle a known number of elements per block; a GEMM's name
carries its tile and its grid counts the tiles. The reduced size of a GEMM shows in none
of its own figures, but in the grid of its gradients, which `GemmGrids` looks up.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import prod

from stepsight.trace.events import Event
from stepsight.trace.launches import NO_OP, Launch
from stepsight.trace.link import LinkedTrace
from stepsight.workload.program import Kernel

_TILE = re.compile(r"(?<![a-zA-Z\d])(\d{2,3})x(\d{2,3})(?!\d)")
_WORK_PER_BLOCK = re.compile(r"elementwise_kernel<(\d+),\s*(\d+)")
_GEMM = re.compile(r"gemm|nvjet|cutlass|xmma", re.IGNORECASE)
_CHUNK = 65536
"""Elements of a chunk in PyTorch's and apex's multi-tensor kernels."""
_CHUNK_FILLED = 0.75
"""A tensor's last chunk is half full on average, most tensors have one to four."""
_ROW_KERNELS = (
    ("softmax_warp_backward", "softmax_backward"), ("SoftMaxBackward", "softmax_backward"),
    ("softmax", "softmax"), ("SoftMax", "softmax"), ("nll_loss_backward", "nll_loss_backward"),
    ("nll_loss_forward", "nll_loss"), ("layer_norm_grad", "layer_norm_backward"),
    ("GammaBetaBackward", "layer_norm_backward"), ("layer_norm", "layer_norm"), ("LayerNorm", "layer_norm"),
    ("bn_bw", "batch_norm_backward"), ("bn_fw", "batch_norm"),
)  # fmt: skip
"""Kernels that work on rows, by what their names hold; the rows' length does not show."""
_UNKNOWN_K = 1024
"""Where not even a gradient shows the reduced size: a common hidden size."""


def sized_by_grid(linked: LinkedTrace, launch: Launch, op: Event | None, event: Event) -> Kernel:
    """A kernel by its grid: an estimate of its sizes, never of its time."""
    name = op.name if op else ""
    dtype = _dtype(event.name) if not event.name.startswith("triton") else _common_dtype(linked)
    tile = _TILE.search(event.name)
    if _GEMM.search(event.name) and tile and event.grid():
        return _gemm(linked, launch, event, dtype, int(tile[1]), int(tile[2]))
    if "multi_tensor_apply" in event.name:
        return _multi_tensor(event, name)
    elements = elements_by_grid(event)
    width = {"fp32": 4, "fp64": 8}.get(dtype, 2)
    if "reduce_kernel" in event.name:
        return Kernel.of("reduce", dtype, name=name, rows=max(elements / 64, 1), cols=64)
    for word, family in _ROW_KERNELS:
        if word in event.name and not event.name.startswith("triton"):
            return Kernel.of(family, dtype, name=name, rows=max(elements / 128, 1), cols=128)
    if "dropout_kernel" in event.name:
        return Kernel.of("dropout", dtype, name=name, elements=4 * elements)
    if "CatArray" in event.name:
        # The grid of a concatenation is capped; what the next kernels read was concatenated here.
        size = max(elements, _read_next(linked, launch)) * width
        return Kernel.of("concat", dtype, name=name, read_bytes=size, write_bytes=size, inputs=2)
    if "FillFunctor" in event.name:
        return Kernel.of("fill", dtype, name=name, bytes=elements * width)
    inputs = 2 if _binary(event.name) else 1
    read_width, write_width = _widths(name, width)
    return Kernel.of(
        "elementwise", dtype, name=name, elements=elements, read_bytes=inputs * elements * read_width,
        write_bytes=elements * write_width,
    )  # fmt: skip


def _widths(op: str, width: int) -> tuple[int, int]:
    """Bytes of an element read and written: logic reads and comparisons write single bytes."""
    call = op.split("::")[-1].rstrip("_")
    if call.startswith(("logical_", "bitwise_")):
        return 1, 1
    return (width, 1) if call in ("lt", "le", "gt", "ge", "eq", "ne", "isfinite", "isnan") else (width, width)


def _multi_tensor(event: Event, name: str) -> Kernel:
    """A foreach or fused optimizer kernel: a block takes a chunk of one tensor of each list."""
    lists = re.search(r"TensorList\w*Metadata<(\d+)", event.name)
    depth = int(lists[1]) if lists else 2
    elements = float(prod(event.grid() or (1,)) * _CHUNK * _CHUNK_FILLED)
    return Kernel.of(
        "optimizer", name=name, elements=elements, read_bytes=4 * depth * elements,
        write_bytes=4 * max(depth - 1, 1) * elements, tensors=30,
    )  # fmt: skip


def _read_next(linked: LinkedTrace, launch: Launch) -> float:
    """Elements that the next two kernels on the same stream read, by their grids."""
    at = bisect_right([x.call.ts for x in linked.launches], launch.call.ts)
    stream = launch.gpu[0].args.stream
    following = [x for x in linked.launches[at : at + 8] if x.gpu[0].args.stream == stream][:2]
    sizes = [0.0]
    for other in following:
        event = other.gpu[0]
        tile = _TILE.search(event.name)
        if _GEMM.search(event.name) and tile and event.grid():
            made = _gemm(linked, other, event, "fp32", int(tile[1]), int(tile[2]))
            sizes.append(made.dim("batch") * made.dim("m") * made.dim("k"))
        elif "elementwise" in event.name:
            sizes.append(elements_by_grid(event))
    return max(sizes)


def elements_by_grid(event: Event) -> float:
    """Elements that a kernel's grid covers."""
    blocks = prod(event.grid() or (1,))
    threads = prod(event.block() or (1,))
    stated = _WORK_PER_BLOCK.search(event.name)
    if "vectorized_elementwise" in event.name or "unrolled_elementwise" in event.name:
        # Four elements a thread, whatever the vector width (thread_work_size in PyTorch).
        return float(blocks * threads * 4)
    if event.name.startswith("triton"):
        # Inductor's blocks hold 1024 elements of 128 threads (its 1-D pointwise configuration).
        return float(blocks * threads * 8)
    if stated:
        return float(blocks * int(stated[1]) * int(stated[2]))
    return float(blocks * threads)


def _binary(name: str) -> bool:
    return (
        "BinaryFunctor" in name
        or "CUDAFunctor_add" in name
        or ("CUDAFunctorOnSelf" not in name and "Functor_add" in name)
    )


def _dtype(name: str) -> str:
    if "bf16" in name or "BFloat16" in name or "bfloat16" in name:
        return "bf16"
    if "Half" in name or "fp16" in name or "f16" in name or "h884" in name or name.startswith("nvjet_h"):
        return "fp16"
    if name.startswith("nvjet_t"):
        return "bf16"
    return "tf32" if "s1688" in name or "tf32" in name else "fp32"


def _common_dtype(linked: LinkedTrace) -> str:
    """What the trace's matrix products compute in: its other kernels mostly stream the same."""
    key = id(linked)
    if key not in _DTYPES:
        _DTYPES.clear()
        seen = Counter(_dtype(x.gpu[0].name) for x in linked.launches if _GEMM.search(x.gpu[0].name))
        _DTYPES[key] = seen.most_common(1)[0][0] if seen else "fp32"
    return _DTYPES[key]


def _gemm(linked: LinkedTrace, launch: Launch, event: Event, dtype: str, tile_m: int, tile_n: int) -> Kernel:
    grids = _grids(linked)
    across, down, batch = _tiles(event, tile_m, tile_n)
    k = grids.reduced_size(linked, launch, across, down)
    across, down = grids.tightest(linked, launch, across), grids.tightest(linked, launch, down)
    if not any("bmm" in e.name.lower() or "baddbmm" in e.name for e in linked.chain(launch.op)):
        batch = 1  # the grid's depth is the split of the sum
    return Kernel.of("gemm", dtype, name="by grid", batch=batch, m=down, n=across, k=k)


def _tiles(event: Event, tile_m: int, tile_n: int) -> tuple[int, int, int]:
    """Columns, rows and batch that the grid covers; its depth is the batch or the K splits."""
    grid = (*event.grid(), 1, 1, 1)[:3]
    return grid[0] * tile_m, grid[1] * tile_n, grid[2]


@dataclass(slots=True)
class GemmGrids:
    """For every forward GEMM without sizes, the output sizes of its gradients.

    The gradient of the input has the reduced size as its width, the gradient of the weight
    as one of its sides: whichever side is not the forward output's is the reduced size.
    """

    by_sequence: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    forward: dict[int, tuple[int, int]] = field(default_factory=dict)

    def tightest(self, linked: LinkedTrace, launch: Launch, side: int) -> int:
        """The smallest bound on a side: the same size shows in other grids with other tiles."""
        sequence = _sequence(linked, launch.op)
        others = [
            *self.by_sequence.get(sequence, []),
            *([self.forward[sequence]] if sequence in self.forward else []),
        ]
        return min([side, *(x for pair in others for x in pair if side - 128 < x <= side)])

    def reduced_size(self, linked: LinkedTrace, launch: Launch, across: int, down: int) -> int:
        sequence = _sequence(linked, launch.op)
        if sequence < 0:
            return _UNKNOWN_K
        backward = _is_backward(linked, launch.op)
        if not backward:
            widths = [a for a, d in self.by_sequence.get(sequence, []) if _near(d, down)]
            return min(widths) if widths else _UNKNOWN_K
        n, m = self.forward.get(sequence, (_UNKNOWN_K, _UNKNOWN_K))
        # A gradient as tall as the batch sums over the output; the other one sums over the batch.
        return n if _near(down, m) else m


def _near(a: int, b: int) -> bool:
    return abs(a - b) <= 128


_CACHE: dict[int, GemmGrids] = {}
_DTYPES: dict[int, str] = {}


def _grids(linked: LinkedTrace) -> GemmGrids:
    key = id(linked)
    if key not in _CACHE:
        _CACHE.clear()
        _CACHE[key] = _collect(linked)
    return _CACHE[key]


def _collect(linked: LinkedTrace) -> GemmGrids:
    grids = GemmGrids()
    for launch in linked.launches:
        event = launch.gpu[0]
        tile = _TILE.search(event.name)
        if not (tile and _GEMM.search(event.name) and event.grid()):
            continue
        across, down, _ = _tiles(event, int(tile[1]), int(tile[2]))
        sequence = _sequence(linked, launch.op)
        if sequence < 0:
            continue
        if _is_backward(linked, launch.op):
            grids.by_sequence[sequence].append((across, down))
        else:
            grids.forward[sequence] = (across, down)
    return grids


def _sequence(linked: LinkedTrace, op: int) -> int:
    if op == NO_OP:
        return -1
    numbers = [e.args.sequence for e in linked.chain(op) if e.args.sequence >= 0]
    return numbers[-1] if numbers and _is_backward(linked, op) else (numbers[0] if numbers else -1)


def _is_backward(linked: LinkedTrace, op: int) -> bool:
    return any("Backward" in e.name or e.name.startswith("autograd::") for e in linked.chain(op))
