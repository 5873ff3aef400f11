"""Kernels timed as a step runs them: among others, all ranks at once, operands as a step leaves them.

A microbenchmark that repeats one call on one set of operands finds everything in the cache.
In a step it is different for each operand: the activation or gradient that the previous
operator has just written is near, weights and saved activations were last touched long ago.
So every call names its ``fresh`` operands, which the benchmark writes just before timing;
the others go cold while the other kernels of the round run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns, thread_time_ns
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional

from stepsight.kernels.columns import batches
from stepsight.program.job import Kernel
from stepsight.run.worker import Rank

ROUND_BYTES = 160 << 20
"""Operands of one round: several last-level caches, so that what is not fresh has gone cold."""
ROUND_KERNELS = 48
WARM_ROUNDS = 2
TINY = {
    "m": 4, "n": 4, "k": 4, "rows": 4, "cols": 4, "table_rows": 4, "elements": 16, "bytes": 64, "batch": 1,
    "q": 4, "kv": 4, "heads": 1, "kv_heads": 1, "tensors": 2, "samples": 2,
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


class Stopwatch:
    """Times calls in µs: by the clock on a CPU, by CUDA events on a GPU.

    With ``own_time`` a CPU is read by the thread's own processor time: what other processes take
    away in between does not count. Only for calls that neither wait nor use other threads.
    """

    def __init__(self, device: str, *, own_time: bool = False) -> None:
        self._cuda = device.startswith("cuda")
        self._now: Callable[[], int] = thread_time_ns if own_time else perf_counter_ns

    def synchronize(self) -> None:
        """Wait until everything queued on the device has run."""
        if self._cuda:
            torch.cuda.synchronize()

    def time_us(self, call: Callable[[], Any]) -> float:
        """How long one call takes on the device; its result is dropped after the clock has stopped."""
        return self.timed(call)[0]

    def timed(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """How long one call takes on the device, and its result."""
        if self._cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = call()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e3, result
        begin = self._now()
        result = call()
        taken = self._now() - begin
        return taken / 1e3, result


def meet(rank: Rank) -> None:
    """Wait until all ranks are here."""
    if rank.ranks > 1:
        dist.barrier()


def measure(rank: Rank, kernels: Sequence[Kernel], repeats: int, seed: int) -> list[list[float]]:
    """In every rank at the same time: one round, the kernels in a new order in every repeat; the times of
    each kernel in µs."""
    meet(rank)
    shuffle = random.Random(seed * 101 + rank.rank)
    stopwatch = Stopwatch(rank.device, own_time=len(rank.cores) == 1)
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
                for tensor in call.fresh:
                    if tensor.is_floating_point():
                        tensor.mul_(1.0)
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

    def shaped(self, shape: str) -> torch.Tensor:
        """A tensor by the names of its sizes: ``rows cols``; ``words`` are fours of bytes."""
        named = {"words": self.dim("bytes") // 4, "1": 1}
        return self.tensor(*(named.get(name) or self.dim(name) for name in shape.split()))

    def indices(self, count: float, below: float) -> torch.Tensor:
        return torch.randint(0, max(int(below), 1), (max(int(count), 1),), device=self.device)

    def dim(self, name: str, default: float = 1.0) -> int:
        return max(int(self.kernel.dim(name, default)), 1)


Builder = Callable[[Operands], PreparedCall]


def prepare(kernel: Kernel, device: str) -> PreparedCall | None:
    """The call for a kernel, or None for families that other benchmarks cover (lookups)."""
    build = _BUILDERS.get(kernel.family)
    return build(Operands(kernel, device)) if build else None


def _of(call: Callable[..., Any], *shapes: str, fresh: int = 1) -> Builder:
    """A call on tensors of these shapes, the first ``fresh`` of which were just written."""

    def build(m: Operands) -> PreparedCall:
        tensors = [m.shaped(shape) for shape in shapes]
        return PreparedCall(lambda: call(*tensors), tuple(tensors[:fresh]))

    return build


def _gemm(m: Operands) -> PreparedCall:
    name = m.kernel.operator
    if m.dim("batch") > 1 or name == "bmm":
        return _of(torch.bmm, "batch m k", "batch k n")(m)
    if name == "dgrad":  # gradient (rows × k) · weight (k × cols), both as they lie in memory
        return _of(torch.mm, "m k", "k n")(m)
    if name == "wgrad":  # gradientᵀ · saved input
        return _of(lambda grad, saved: torch.mm(grad.t(), saved), "k m", "k n")(m)
    return _of(lambda x, weight, bias: torch.addmm(bias, x, weight.t()), "m k", "n k", "n")(m)


_aten = torch.ops.aten
_UNARY: dict[str, Callable[[torch.Tensor], Any]] = {
    "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "sqrt": torch.sqrt,
    "gelu": functional.gelu, "silu": functional.silu, "rsqrt": torch.rsqrt,
    "neg": torch.neg, "pow": lambda x: torch.pow(x, 3.0), "exp": torch.exp,
    "cos": torch.cos, "sin": torch.sin,
    "bernoulli_": lambda x: x.bernoulli_(0.9), "div_": lambda x: x.div_(0.9),
    "add": lambda x: torch.add(x, 1e-8), "sub": lambda x: torch.sub(x, 1e-8),
    "mul": lambda x: torch.mul(x, 0.999), "div": lambda x: torch.div(x, 1.001),
}  # fmt: skip
_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "threshold_backward": lambda g, x: _aten.threshold_backward(g, x, 0),
    "sigmoid_backward": _aten.sigmoid_backward, "tanh_backward": _aten.tanh_backward,
    "gelu_backward": _aten.gelu_backward, "silu_backward": _aten.silu_backward,
    "lerp": lambda a, b: a.lerp_(b, 0.1),
    "binary_cross_entropy": lambda x, y: functional.binary_cross_entropy(x, y, reduction="none"),
    "binary_cross_entropy_with_logits": lambda x, y: functional.binary_cross_entropy_with_logits(
        x, y, reduction="none"
    ),
    "mse_loss": lambda x, y: functional.mse_loss(x, y, reduction="none"),
}  # fmt: skip
_TERNARY: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "addcmul": lambda a, b, c: a.addcmul_(b, c, value=1e-3),
    "addcdiv": lambda a, b, c: a.addcdiv_(b, c, value=-1e-3),
    "binary_cross_entropy_backward": lambda g, x, y: _aten.binary_cross_entropy_backward(g, x, y, None, 0),
    "mse_loss_backward": lambda g, x, y: _aten.mse_loss_backward(g, x, y, 0),
}  # fmt: skip
_COLD = frozenset({"lerp"})
"""Adam's first pass over a parameter's gradient and state, which the step has not touched recently; the
passes after it find them near."""


def operand_count(kernel: Kernel) -> int:
    """How many full tensors an element-wise kernel reads (a broadcast operand does not count)."""
    elements = max(kernel.dim("elements"), 1.0)
    width = kernel.dim("write_bytes", 4 * elements) / elements
    return max(1, round(kernel.dim("read_bytes", width * elements) / (width * elements)))


def _elementwise(m: Operands) -> PreparedCall:
    name, n, reads = m.kernel.operator.rstrip("_"), m.dim("elements"), operand_count(m.kernel)
    if m.kernel.operator in ("bernoulli_", "div_"):
        name = m.kernel.operator
    if name == "index":
        return _pair_index(m, n)
    if name in ("index_select", "index_add"):
        return _last_dimension_index(m, name, n)
    if name == "cast":
        target = torch.float32 if m.dtype != torch.float32 else torch.bfloat16
        return _of(lambda source: source.to(target), "elements")(m)
    a = m.tensor(n)
    fresh = () if name in _COLD else (a,)
    if name == "where":  # a mask that the model holds, and a number in its place
        mask, other = m.tensor(n) > 0.5, torch.zeros((), dtype=m.dtype, device=m.device)
        return PreparedCall(lambda: torch.where(mask, a, other), fresh)
    if reads >= 3 or name in _TERNARY:
        ternary = _TERNARY.get(name, torch.addcmul)
        b = m.tensor(n)
        c = b if name == "addcmul" else m.tensor(n)  # the squared gradient: one tensor, read twice
        near = (a, b, c) if name in ("addcmul", "addcdiv") else fresh
        return PreparedCall(lambda: ternary(a, b, c), near)
    if reads == 2 or (name in _BINARY and name not in _UNARY):
        b, binary = m.tensor(n), _BINARY.get(name, torch.add)
        return PreparedCall(lambda: binary(a, b), fresh)
    unary = _UNARY.get(name, torch.neg)
    return PreparedCall(lambda: unary(a), fresh)


def _last_dimension_index(m: Operands, name: str, elements: int) -> PreparedCall:
    """Picks or adds the leading half of every row, as XLNet's relative shift does."""
    length = 64
    rows = max(elements // length, 1)
    whole, part = m.tensor(rows, 2 * length), m.tensor(rows, length)
    picked = torch.arange(length, device=m.device)
    if name == "index_select":
        return PreparedCall(lambda: whole.index_select(1, picked), (whole,))
    return PreparedCall(lambda: whole.index_add_(1, picked, part), (part,))


def _pair_index(m: Operands, elements: int) -> PreparedCall:
    """Picks the pairs below the diagonal out of a stack of products, as a DLRM's interaction does."""
    # The index tensors are read next to the data: 16 bytes per pair beyond what is written.
    surplus = m.kernel.dim("read_bytes") - m.kernel.dim("write_bytes")
    pairs = max(int(m.kernel.dim("pairs", 0) or surplus / 16), 1)
    batch = max(elements // pairs, 1)
    size = int((1 + (1 + 8 * pairs) ** 0.5) / 2)
    products = m.tensor(batch, size, size)
    rows, cols = torch.tril_indices(size, size, -1, device=m.device)
    return PreparedCall(lambda: products[:, rows, cols], (products,))


def _reduce(m: Operands) -> PreparedCall:
    if m.kernel.operator == "mean":
        return _of(lambda x: x.mean(-1), "rows cols")(m)
    return _of(lambda x: x.sum(0), "cols rows")(m)  # a gradient summed over the batch


def _gather(m: Operands) -> PreparedCall:
    picked = m.indices(m.dim("rows"), m.dim("table_rows"))
    return _of(lambda table: functional.embedding(picked, table), "table_rows cols", fresh=0)(m)


def _scatter(m: Operands) -> PreparedCall:
    rows, cols, table_rows = m.dim("rows"), m.dim("cols"), m.dim("table_rows")
    if m.kernel.operator == "index_put":  # pairs × samples into products of table_rows entries a sample
        size = max(round(table_rows**0.5), 2)
        first, second = torch.tril_indices(size, size, -1, device=m.device)
        grad, whole = m.tensor(cols, len(first)), m.tensor(cols, size, size)
        put = _aten._index_put_impl_
        return PreparedCall(lambda: put(whole, [None, first, second], grad, True, True), (grad,))
    picked, backward = m.indices(rows, table_rows), _aten.embedding_dense_backward
    return _of(lambda grad: backward(grad, picked, table_rows, -1, False), "rows cols")(m)


def _concat(m: Operands) -> PreparedCall:
    inputs, elements = m.dim("inputs"), m.dim("write_bytes") // 4
    rows = m.dim("samples", 0) if m.kernel.dim("samples", 0) else max(1, min(1024, elements // inputs))
    parts = [m.tensor(rows, max(elements // inputs // rows, 1)) for _ in range(inputs)]
    return PreparedCall(lambda: torch.cat(parts, 1), tuple(parts[:1]))


def _transpose(m: Operands) -> PreparedCall:
    rows = max(2 ** int(torch.log2(torch.tensor(float(m.dim("elements")))).item() / 2), 1)
    x = m.tensor(rows, 4, max(m.dim("elements") // rows // 4, 1))
    return PreparedCall(lambda: x.transpose(0, 1).contiguous(), (x,))


def _copy_across(to_device: bool) -> Builder:
    def build(m: Operands) -> PreparedCall:
        near = m.shaped("words")
        far = near.cpu()
        return PreparedCall((lambda: near.copy_(far)) if to_device else (lambda: far.copy_(near)))

    return build


def _fill(m: Operands) -> PreparedCall:
    elements = m.dim("bytes") // 4
    return PreparedCall(lambda: torch.zeros(elements, device=m.device))


def _nll_loss(m: Operands) -> PreparedCall:
    target = m.indices(m.dim("rows"), m.dim("cols"))
    return _of(lambda scores: functional.nll_loss(scores, target), "rows cols")(m)


def _nll_loss_backward(m: Operands) -> PreparedCall:
    target = m.indices(m.dim("rows"), m.dim("cols"))
    one, total = torch.ones((), device=m.device), torch.tensor(float(m.dim("rows")), device=m.device)
    backward = _aten.nll_loss_backward
    return _of(lambda s: backward(one, s, target, None, 1, -100, total), "rows cols", fresh=0)(m)


_HEADS = "batch heads q head_dim"


def _attention(m: Operands) -> PreparedCall:
    causal, attend = bool(m.kernel.dim("causal", 0.0)), functional.scaled_dot_product_attention
    return _of(lambda q, k, v: attend(q, k, v, is_causal=causal), _HEADS, _HEADS, _HEADS, fresh=3)(m)


def _attention_backward(m: Operands) -> PreparedCall:
    """Through autograd, since every device has another fused backward; the forward is not timed."""
    q, k, v = inputs = [m.shaped(_HEADS).requires_grad_() for _ in range(3)]
    with torch.enable_grad():
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=bool(m.kernel.dim("causal", 0.0)))
    grad = m.shaped(_HEADS)
    return PreparedCall(lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True), (grad,))


def _optimizer(m: Operands) -> PreparedCall:
    each = max(m.dim("elements") // m.dim("tensors"), 1)
    parameters, gradients = ([m.tensor(each) for _ in range(m.dim("tensors"))] for _ in range(2))
    return PreparedCall(lambda: torch._foreach_add_(parameters, gradients, alpha=-1e-3))


_ALL = [True, True, True]
_BUILDERS: dict[str, Builder] = {
    "gemm": _gemm,
    "elementwise": _elementwise,
    "softmax": _of(lambda x: torch.softmax(x, -1), "rows cols"),
    "softmax_backward": _of(
        lambda g, y: _aten._softmax_backward_data(g, y, -1, torch.float32), "rows cols", "rows cols"
    ),
    "layer_norm": _of(
        lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias),
        "rows cols", "cols", "cols",
    ),
    "layer_norm_backward": _of(
        lambda g, x, weight, bias, mean, rstd: _aten.native_layer_norm_backward(
            g, x, list(weight.shape), mean, rstd, weight, bias, _ALL
        ),
        "rows cols", "rows cols", "cols", "cols", "rows 1", "rows 1",
    ),
    "reduce": _reduce,
    "dropout": _of(lambda x: functional.dropout(x, 0.1, True), "elements"),
    "gather": _gather,
    "scatter": _scatter,
    "concat": _concat,
    "transpose": _transpose,
    "copy_d2d": _of(lambda target, source: target.copy_(source), "words", "words", fresh=0),
    "copy_h2d": _copy_across(True),
    "copy_d2h": _copy_across(False),
    "fill": _fill,
    "nll_loss": _nll_loss,
    "nll_loss_backward": _nll_loss_backward,
    "attention": _attention,
    "attention_backward": _attention_backward,
    "optimizer": _optimizer,
}  # fmt: skip
