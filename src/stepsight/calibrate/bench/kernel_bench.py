"""Kernels timed as a step runs them: among others, all ranks at once, operands as a step leaves them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np
import torch

from stepsight.calibrate.rehearsal import (
    BATCHES_PER_RANK,
    FAMILIES,
    Document,
    random_dlrm,
    random_torchrec,
    random_transformer,
)
from stepsight.kernels.columns import batches
from stepsight.kernels.measured import variant
from stepsight.kernels.models import EMBEDDING_FAMILIES
from stepsight.program.job import Kernel
from stepsight.run.worker import Rank
from stepsight.workload.dlrm.config import EAGER, TORCHREC_STACK
from stepsight.workload.files import Workload
from stepsight.workload.llm.eager.build import MODELS

ROUND_BYTES = 160 << 20
"""Operands of one round: several last-level caches, so that what is not fresh has gone cold."""
ROUND_KERNELS = 48
WARM_ROUNDS = 2
TINY = {
    "m": 4, "n": 4, "k": 4, "rows": 4, "cols": 4, "table_rows": 4, "elements": 16, "bytes": 64, "batch": 1,
    "c_in": 4, "c_out": 4, "h": 8, "w": 8, "q": 4, "kv": 4, "heads": 1, "kv_heads": 1, "tensors": 2,
    "samples": 2,
}  # fmt: skip
"""Most of each size in a kernel that only warms the code."""


def rounds_of(kernels: Sequence[Kernel], seed: int) -> Iterator[list[Kernel]]:
    """Kernels in mixed rounds of about `ROUND_BYTES`: neighbours differ, as they do in a step."""
    order = list(kernels)
    random.Random(seed).shuffle(order)
    held, size = [], 0.0
    for kernel in order:
        held.append(kernel)
        size += operand_bytes(kernel)
        if size >= ROUND_BYTES or len(held) >= ROUND_KERNELS:
            yield held
            held, size = [], 0.0
    if held:
        yield held


def operand_bytes(kernel: Kernel) -> float:
    """About how much memory the kernel's operands take."""
    batch = next(iter(batches([kernel])))
    return float(batch.bytes[0]) if batch.known else 0.0


def tiny(kernel: Kernel) -> Kernel:
    """The same code with next to nothing to do."""
    sizes = {name: min(size, TINY.get(name, size)) for name, size in kernel.dims}
    if "elements" in sizes:
        share = sizes["elements"] / max(kernel.dim("elements"), 1.0)
        sizes |= {n: s * share for n, s in kernel.dims if n in ("read_bytes", "write_bytes")}
    elif "inputs" in sizes:
        sizes |= dict.fromkeys(("read_bytes", "write_bytes"), 16.0 * sizes["inputs"])
    return replace(kernel, dims=tuple(sizes.items()))


def measure(rank: Rank, kernels: Sequence[Kernel], repeats: int, seed: int) -> list[list[float]]:
    """In every rank at the same time: one round, repeated; the times of each kernel in µs."""
    meet(rank)
    return time_kernels(rank, kernels, repeats, seed * 101 + rank.rank)


def meet(rank: Rank) -> None:
    """Wait until all ranks are here."""
    import torch.distributed as dist

    if rank.ranks > 1:
        dist.barrier()


def time_kernels(rank: Rank, kernels: Sequence[Kernel], repeats: int, seed: int) -> list[list[float]]:
    """Repeated times of each kernel, the kernels in a new order in every repeat."""
    import torch

    from stepsight.calibrate.bench.kernel_bench import Stopwatch, touch
    from stepsight.calibrate.bench.torch_kernels import prepare

    stopwatch, shuffle = Stopwatch(rank.device, own_time=len(rank.cores) == 1), random.Random(seed)
    times: list[list[float]] = [[] for _ in kernels]
    held: list[Any] = [None] * len(kernels)
    with torch.no_grad():
        calls = [prepare(kernel, rank.device) for kernel in kernels]
        twins = [prepare(tiny(kernel), rank.device) for kernel in kernels]
        order = [i for i, call in enumerate(calls) if call is not None]
        for repeat in range(WARM_ROUNDS + repeats):
            shuffle.shuffle(order)
            for i in order:
                call, twin = calls[i], twins[i]
                if call is None or twin is None:
                    continue
                twin.call()  # a step has run this code a moment ago, on other data
                touch(call.fresh)
                stopwatch.synchronize()
                # A step writes its results where it wrote them a step ago, not where it has just freed some.
                held[i] = None
                taken, held[i] = stopwatch.timed(call.call)
                if repeat >= WARM_ROUNDS:
                    times[i].append(taken)
    return times


_DTYPES = {
    "fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
    "fp64": torch.float64, "int64": torch.int64, "int32": torch.int32, "bool": torch.bool,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A kernel ready to run: ``call`` runs it, ``fresh`` are the operands its producer just wrote."""

    call: Callable[[], Any]
    fresh: tuple[torch.Tensor, ...] = ()


class Operands:
    """Makes the operands of one kernel on one device."""

    def __init__(self, kernel: Kernel, device: str) -> None:
        self.kernel, self.device = kernel, device
        self.dtype = _DTYPES.get(kernel.dtype, torch.float32)

    def tensor(self, *shape: float) -> torch.Tensor:
        sizes = [max(int(s), 1) for s in shape]
        if self.dtype.is_floating_point:
            return torch.rand(sizes, dtype=torch.float32, device=self.device).to(self.dtype)
        return torch.ones(sizes, dtype=self.dtype, device=self.device)

    def indices(self, count: float, below: float) -> torch.Tensor:
        return torch.randint(0, max(int(below), 1), (max(int(count), 1),), device=self.device)

    def dim(self, name: str, default: float = 1.0) -> int:
        return max(int(self.kernel.dim(name, default)), 1)


def touch(tensors: Sequence[torch.Tensor]) -> None:
    """Write the operands that a producer would have just written."""
    for tensor in tensors:
        if tensor.is_floating_point():
            tensor.mul_(1.0)


GRID_SHARE = 0.3
EVEN = 8
FEWEST_SHAPES = 12
"""A variant with fewer shapes in the drawn workloads gets scaled copies of them up to this many."""
_ROWS = ("rows",)
_FREE_SIZES = {
    "gemm": ("m", "n", "k"), "elementwise": ("elements",), "softmax": _ROWS, "softmax_backward": _ROWS,
    "layer_norm": _ROWS, "layer_norm_backward": _ROWS, "reduce": ("rows", "cols"), "copy_d2d": ("bytes",),
    "fill": ("bytes",), "transpose": ("elements",), "gather": _ROWS, "scatter": _ROWS, "nll_loss": _ROWS,
    "nll_loss_backward": _ROWS, "concat": ("write_bytes",),
}  # fmt: skip
"""Sizes that may be changed on their own without contradicting another one."""


def rehearsal_documents(ranks: int, dlrms: int, transformers: int, stack: str = EAGER) -> list[Document]:
    """Random workloads of both kinds; transformer families without a builder are left out. Of TorchRec's
    stack, which trains DLRMs alone, as many of those."""
    if stack == TORCHREC_STACK:
        return [_of_all_sizes(random_torchrec(ranks, i), i, ranks) for i in range(dlrms + transformers)]
    known = [family for family in FAMILIES if family in MODELS]
    documents = [_of_all_sizes(random_dlrm(ranks, i), i, ranks) for i in range(dlrms)]
    return documents + [
        random_transformer(ranks, i, family=known[i % len(known)]) for i in range(transformers)
    ]


def _of_all_sizes(document: Document, number: int, ranks: int) -> Document:
    """With each batch size equally often: short steps, which latencies decide, are as many as long ones."""
    turn = number // 2 % len(BATCHES_PER_RANK)  # models with heavy and with mixed tables take turns
    return {**document, "batch": BATCHES_PER_RANK[turn] * ranks}


def kernels_of(workloads: Iterable[Workload], device: str) -> list[Kernel]:
    """Every distinct kernel of these workloads on a device, lookups left out."""
    seen: dict[Kernel, None] = {}
    for workload in workloads:
        for program in workload.job(device).programs:
            for op in program.ops:
                for kernel in op.kernels:
                    if kernel.family not in EMBEDDING_FAMILIES and kernel.lookup is None:
                        seen.setdefault(kernel)
    return list(seen)


def chosen_kernels(workloads: Sequence[Workload], device: str, most: int, seed: int = 0) -> list[Kernel]:
    """At most ``most`` kernels, shared fairly among variants: rare ones all, common ones by lot."""
    rng = np.random.default_rng(seed)
    groups: dict[str, list[Kernel]] = {}
    for kernel in kernels_of(workloads, device):
        groups.setdefault(variant(kernel), []).append(kernel)
    drawn = int(most * (1 - GRID_SHARE))
    weights = {name: _weight(name) * len(members) ** 0.5 for name, members in groups.items()}
    total = sum(weights.values())
    kept: list[Kernel] = []
    for name, members in groups.items():
        share = max(FEWEST_SHAPES, round(drawn * weights[name] / total))
        picked = [members[i] for i in rng.permutation(len(members))[:share]]
        kept += picked + _grid(picked, min(FEWEST_SHAPES, share) - len(picked), rng)
    return kept + _grid(kept, most - len(kept), rng)


def _weight(name: str) -> float:
    """Matrix products have three sizes and most of the time; the others mostly one size."""
    return 4.0 if name.startswith("gemm/") else 1.0


def _grid(kernels: Sequence[Kernel], count: int, rng: np.random.Generator) -> list[Kernel]:
    """``count`` kernels like the given ones, each free size multiplied by up to four or divided."""
    free = [k for k in kernels if k.family in _FREE_SIZES and k.operator != "index_put"]
    made: list[Kernel] = []
    for _ in range(max(count, 0) if free else 0):
        kernel = free[int(rng.integers(len(free)))]
        made.append(scaled(kernel, np.exp(rng.uniform(-1.4, 1.4, 3)).tolist()))
    return made


def scaled(kernel: Kernel, factors: Sequence[float]) -> Kernel:
    """The kernel with its free sizes multiplied; what follows from them follows."""
    sizes = dict(kernel.dims)
    before = sizes.get("elements", 1.0)
    for name, factor in zip(_FREE_SIZES[kernel.family], factors, strict=False):
        step = EVEN if sizes.get(name, 1.0) % EVEN == 0 else 1  # layer widths are seldom odd
        sizes[name] = float(max(step, step * round(sizes.get(name, 1.0) * factor / step)))
    if kernel.family == "elementwise":
        ratio = sizes["elements"] / before
        sizes["read_bytes"], sizes["write_bytes"] = sizes["read_bytes"] * ratio, sizes["write_bytes"] * ratio
    if kernel.family == "concat":
        sizes["read_bytes"] = sizes["write_bytes"]
    return replace(kernel, dims=tuple(sizes.items()))


class Stopwatch:
    """Times calls in µs: by the clock on a CPU, by CUDA events on a GPU.

    With ``own_time`` a CPU is read by the thread's own processor time: what other processes take
    away in between does not count. Only for calls that neither wait nor use other threads.
    """

    def __init__(self, device: str, *, own_time: bool = False) -> None:
        self._cuda = device.startswith("cuda")
        self._now: Callable[[], int] = thread_time_ns if own_time else perf_counter_ns
        if self._cuda:
            import torch

            self._torch = torch

    def synchronize(self) -> None:
        """Wait until everything queued on the device has run."""
        if self._cuda:
            self._torch.cuda.synchronize()

    def time_us(self, call: Callable[[], Any]) -> float:
        """How long one call takes on the device; its result is dropped after the clock has stopped."""
        return self.timed(call)[0]

    def timed(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """How long one call takes on the device, and its result."""
        if self._cuda:
            start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = call()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e3, result
        begin = self._now()
        result = call()
        taken = self._now() - begin
        return taken / 1e3, result


FEW = 14
"""Kernels of each kind: enough for a smooth efficiency (`kernels.measured.FEWEST`)."""
MOST_FLOPS, MOST_ELEMENTS = 4e9, 8e6
"""A kernel takes tens of milliseconds of one CPU core at most."""

Draw = Callable[[np.random.Generator], Kernel]


def traced_kernels(seed: int = 0) -> list[Kernel]:
    """``FEW`` kernels of every kind, the same for the same seed."""
    rng = np.random.default_rng([seed, 17])
    return [draw(rng) for draw in _DRAWS for _ in range(FEW)]


def _between(rng: np.random.Generator, low: float, high: float) -> int:
    return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))


def _conv(family: str) -> Draw:
    def draw(rng: np.random.Generator) -> Kernel:
        while True:
            kernel, size = int(rng.choice([1, 3, 5, 7])), _between(rng, 7, 112)
            channels_in, channels_out = 8 * _between(rng, 1, 48), 8 * _between(rng, 1, 48)
            batch, stride = _between(rng, 1, 16), int(rng.choice([1, 2]))
            flops = 2 * batch * (size / stride) ** 2 * channels_in * channels_out * kernel**2
            if flops <= MOST_FLOPS:
                return Kernel.of(
                    family, batch=batch, c_in=channels_in, c_out=channels_out, h=size, w=size, kh=kernel,
                    kw=kernel, stride=stride, padding=kernel // 2, groups=1,
                )  # fmt: skip

    return draw


def _rows_of_channels(family: str) -> Draw:
    def draw(rng: np.random.Generator) -> Kernel:
        channels = 8 * _between(rng, 1, 64)
        return Kernel.of(family, rows=channels, cols=_between(rng, 64, MOST_ELEMENTS / channels))

    return draw


def _pool(rng: np.random.Generator) -> Kernel:
    written = _between(rng, 4e3, MOST_ELEMENTS / 4)
    return Kernel.of("pool", operator="max_pool2d", elements=4 * written, read_bytes=16 * written,
                     write_bytes=4 * written)  # fmt: skip


def _attention(family: str) -> Draw:
    def draw(rng: np.random.Generator) -> Kernel:
        length, heads = 16 * _between(rng, 1, 32), _between(rng, 1, 16)
        return Kernel.of(
            family, batch=_between(rng, 1, 8), heads=heads, kv_heads=heads, q=length, kv=length,
            head_dim=int(rng.choice([32, 64, 128])), causal=int(rng.integers(2)),
        )  # fmt: skip

    return draw


def _sort(rng: np.random.Generator) -> Kernel:
    return Kernel.of("sort", "int64", elements=_between(rng, 1e3, 4e5))


def _update(rng: np.random.Generator) -> Kernel:
    elements, tensors = _between(rng, 1e4, MOST_ELEMENTS), _between(rng, 1, 100)
    return Kernel.of("optimizer", elements=elements, read_bytes=8 * elements, write_bytes=4 * elements,
                     tensors=tensors)  # fmt: skip


def _dropout(rng: np.random.Generator) -> Kernel:
    return Kernel.of("dropout", elements=_between(rng, 1e3, MOST_ELEMENTS))


def _copy(family: str) -> Draw:
    return lambda rng: Kernel.of(family, bytes=4 * _between(rng, 256, MOST_ELEMENTS))


_DRAWS: tuple[Draw, ...] = (
    _conv("conv"),
    _conv("conv_dgrad"),
    _conv("conv_wgrad"),
    _pool,
    _rows_of_channels("batch_norm"),
    _rows_of_channels("batch_norm_backward"),
    _attention("attention"),
    _attention("attention_backward"),
    _sort,
    _update,
    _dropout,
    _copy("copy_h2d"),
    _copy("copy_d2h"),
)
