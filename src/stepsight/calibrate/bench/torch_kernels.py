"""From a `Kernel` to the torch call that runs it, with operands as a training step leaves them.

A microbenchmark that repeats one call on one set of operands finds everything in the cache.
In a step it is different for each operand: the activation or gradient that the previous
operator has just written is near, weights and saved activations were last touched long ago.
So every call names its ``fresh`` operands, which the benchmark writes just before timing;
the others go cold while the other kernels of the round run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stepsight.calibrate.bench.kernel_bench import Operands, PreparedCall
from stepsight.program.job import Kernel


def prepare(kernel: Kernel, device: str) -> PreparedCall | None:
    """The call for a kernel, or None for families that other benchmarks cover (lookups)."""
    build = _BUILDERS.get(kernel.family)
    return build(Operands(kernel, device)) if build else None


def _gemm(m: Operands) -> PreparedCall:
    b, rows, cols, k = m.dim("batch"), m.dim("m"), m.dim("n"), m.dim("k")
    name = m.kernel.operator
    if b > 1 or name == "bmm":
        left, right = m.tensor(b, rows, k), m.tensor(b, k, cols)
        return PreparedCall(lambda: torch.bmm(left, right), (left,))
    if name == "dgrad":  # gradient (rows × k) · weight (k × cols), both as they lie in memory
        grad, weight = m.tensor(rows, k), m.tensor(k, cols)
        return PreparedCall(lambda: torch.mm(grad, weight), (grad,))
    if name == "wgrad":  # gradientᵀ · saved input
        grad, saved = m.tensor(k, rows), m.tensor(k, cols)
        return PreparedCall(lambda: torch.mm(grad.t(), saved), (grad,))
    x, weight, bias = m.tensor(rows, k), m.tensor(cols, k), m.tensor(cols)
    return PreparedCall(lambda: torch.addmm(bias, x, weight.t()), (x,))


_bce_backward = torch.ops.aten.binary_cross_entropy_backward
_UNARY: dict[str, Callable[[torch.Tensor], Any]] = {
    "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "sqrt": torch.sqrt,
    "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu, "rsqrt": torch.rsqrt,
    "neg": torch.neg, "pow": lambda x: torch.pow(x, 3.0), "exp": torch.exp,
    "cos": torch.cos, "sin": torch.sin,
    "bernoulli_": lambda x: x.bernoulli_(0.9), "div_": lambda x: x.div_(0.9),
    "add": lambda x: torch.add(x, 1e-8), "sub": lambda x: torch.sub(x, 1e-8),
    "mul": lambda x: torch.mul(x, 0.999), "div": lambda x: torch.div(x, 1.001),
}  # fmt: skip
_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "threshold_backward": lambda g, x: torch.ops.aten.threshold_backward(g, x, 0),
    "sigmoid_backward": torch.ops.aten.sigmoid_backward, "tanh_backward": torch.ops.aten.tanh_backward,
    "gelu_backward": torch.ops.aten.gelu_backward, "silu_backward": torch.ops.aten.silu_backward,
    "lerp": lambda a, b: a.lerp_(b, 0.1),
    "binary_cross_entropy": lambda x, y: torch.nn.functional.binary_cross_entropy(x, y, reduction="none"),
    "binary_cross_entropy_with_logits": lambda x, y: torch.nn.functional.binary_cross_entropy_with_logits(
        x, y, reduction="none"
    ),
    "mse_loss": lambda x, y: torch.nn.functional.mse_loss(x, y, reduction="none"),
}  # fmt: skip
_TERNARY: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "addcmul": lambda a, b, c: a.addcmul_(b, c, value=1e-3),
    "addcdiv": lambda a, b, c: a.addcdiv_(b, c, value=-1e-3),
    "binary_cross_entropy_backward": lambda g, x, y: _bce_backward(g, x, y, None, 0),
    "mse_loss_backward": lambda g, x, y: torch.ops.aten.mse_loss_backward(g, x, y, 0),
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
        source = m.tensor(n)
        target = torch.float32 if source.dtype != torch.float32 else torch.bfloat16
        return PreparedCall(lambda: source.to(target), (source,))
    a = m.tensor(n)
    fresh = () if name in _COLD else (a,)
    if name == "where":  # a mask that the model holds, and a number in its place
        mask, other = m.tensor(n) > 0.5, torch.zeros((), dtype=m.dtype, device=m.device)
        return PreparedCall(lambda: torch.where(mask, a, other), fresh)
    if reads >= 3 or name in _TERNARY:
        ternary = _TERNARY.get(name, lambda x, y, z: torch.addcmul(x, y, z))
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
    pairs = max(m.dim("pairs", 0), 1) if m.kernel.dim("pairs", 0) else _pairs_of(m)
    batch = max(elements // pairs, 1)
    size = int((1 + (1 + 8 * pairs) ** 0.5) / 2)
    products = m.tensor(batch, size, size)
    rows, cols = torch.tril_indices(size, size, -1, device=m.device)
    return PreparedCall(lambda: products[:, rows, cols], (products,))


def _pairs_of(m: Operands) -> int:
    """The index tensors are read next to the data: what is read beyond what is written is 16 bytes a pair."""
    surplus = m.kernel.dim("read_bytes") - m.kernel.dim("write_bytes")
    return max(int(surplus / 16), 1)


def _rowwise(call: Callable[..., Any], operands: int) -> Callable[[Operands], PreparedCall]:
    def build(m: Operands) -> PreparedCall:
        shape = (m.dim("rows"), m.dim("cols"))
        tensors = [m.tensor(*shape) for _ in range(operands)]
        return PreparedCall(lambda: call(*tensors), (tensors[0],))

    return build


def _layer_norm(m: Operands) -> PreparedCall:
    x, weight, bias = m.tensor(m.dim("rows"), m.dim("cols")), m.tensor(m.dim("cols")), m.tensor(m.dim("cols"))
    return PreparedCall(lambda: torch.nn.functional.layer_norm(x, weight.shape, weight, bias), (x,))


def _layer_norm_backward(m: Operands) -> PreparedCall:
    rows, cols = m.dim("rows"), m.dim("cols")
    grad, x, weight, bias = m.tensor(rows, cols), m.tensor(rows, cols), m.tensor(cols), m.tensor(cols)
    mean, rstd = m.tensor(rows, 1), m.tensor(rows, 1)
    backward = torch.ops.aten.native_layer_norm_backward
    return PreparedCall(
        lambda: backward(grad, x, [cols], mean, rstd, weight, bias, [True, True, True]), (grad,)
    )


def _reduce(m: Operands) -> PreparedCall:
    rows, cols = m.dim("rows"), m.dim("cols")
    if m.kernel.operator == "mean":
        x = m.tensor(rows, cols)
        return PreparedCall(lambda: x.mean(-1), (x,))
    x = m.tensor(cols, rows)  # a gradient summed over the batch
    return PreparedCall(lambda: x.sum(0), (x,))


def _dropout(m: Operands) -> PreparedCall:
    x = m.tensor(m.dim("elements"))
    return PreparedCall(lambda: torch.nn.functional.dropout(x, 0.1, True), (x,))


def _gather(m: Operands) -> PreparedCall:
    table, picked = (
        m.tensor(m.dim("table_rows"), m.dim("cols")),
        m.indices(m.dim("rows"), m.dim("table_rows")),
    )
    return PreparedCall(lambda: torch.nn.functional.embedding(picked, table))


def _scatter(m: Operands) -> PreparedCall:
    rows, cols, table_rows = m.dim("rows"), m.dim("cols"), m.dim("table_rows")
    if m.kernel.operator == "index_put":  # pairs × samples into products of table_rows entries a sample
        size = max(round(table_rows**0.5), 2)
        first, second = torch.tril_indices(size, size, -1, device=m.device)
        grad, whole = m.tensor(cols, len(first)), m.tensor(cols, size, size)
        put = torch.ops.aten._index_put_impl_
        return PreparedCall(lambda: put(whole, [None, first, second], grad, True, True), (grad,))
    grad, picked = m.tensor(rows, cols), m.indices(rows, table_rows)
    backward = torch.ops.aten.embedding_dense_backward
    return PreparedCall(lambda: backward(grad, picked, table_rows, -1, False), (grad,))


def _concat(m: Operands) -> PreparedCall:
    inputs, elements = m.dim("inputs"), m.dim("write_bytes") // 4
    rows = m.dim("samples", 0) if m.kernel.dim("samples", 0) else max(1, min(1024, elements // inputs))
    parts = [m.tensor(rows, max(elements // inputs // rows, 1)) for _ in range(inputs)]
    return PreparedCall(lambda: torch.cat(parts, 1), tuple(parts[:1]))


def _transpose(m: Operands) -> PreparedCall:
    rows = max(2 ** int(torch.log2(torch.tensor(float(m.dim("elements")))).item() / 2), 1)
    x = m.tensor(rows, 4, max(m.dim("elements") // rows // 4, 1))
    return PreparedCall(lambda: x.transpose(0, 1).contiguous(), (x,))


def _copy(m: Operands) -> PreparedCall:
    source, target = m.tensor(m.dim("bytes") // 4), m.tensor(m.dim("bytes") // 4)
    return PreparedCall(lambda: target.copy_(source))


def _copy_across(to_device: bool) -> Callable[[Operands], PreparedCall]:
    def build(m: Operands) -> PreparedCall:
        near = m.tensor(m.dim("bytes") // 4)
        far = near.cpu()
        return PreparedCall((lambda: near.copy_(far)) if to_device else (lambda: far.copy_(near)))

    return build


def _fill(m: Operands) -> PreparedCall:
    elements = m.dim("bytes") // 4
    return PreparedCall(lambda: torch.zeros(elements, device=m.device))


def _nll_loss(m: Operands) -> PreparedCall:
    scores, target = m.tensor(m.dim("rows"), m.dim("cols")), m.indices(m.dim("rows"), m.dim("cols"))
    return PreparedCall(lambda: torch.nn.functional.nll_loss(scores, target), (scores,))


def _nll_loss_backward(m: Operands) -> PreparedCall:
    scores, target = m.tensor(m.dim("rows"), m.dim("cols")), m.indices(m.dim("rows"), m.dim("cols"))
    one, total = torch.ones((), device=m.device), torch.tensor(float(m.dim("rows")), device=m.device)
    backward = torch.ops.aten.nll_loss_backward
    return PreparedCall(lambda: backward(one, scores, target, None, 1, -100, total))


def _attention(m: Operands) -> PreparedCall:
    shape = (m.dim("batch"), m.dim("heads"), m.dim("q"), m.dim("head_dim"))
    q, k, v = m.tensor(*shape), m.tensor(*shape), m.tensor(*shape)
    causal = bool(m.kernel.dim("causal", 0.0))
    attend = torch.nn.functional.scaled_dot_product_attention
    return PreparedCall(lambda: attend(q, k, v, is_causal=causal), (q, k, v))


def _attention_backward(m: Operands) -> PreparedCall:
    """Through autograd, since every device has another fused backward; the forward is not timed."""
    shape = (m.dim("batch"), m.dim("heads"), m.dim("q"), m.dim("head_dim"))
    inputs = [m.tensor(*shape).requires_grad_() for _ in range(3)]
    with torch.enable_grad():
        out = torch.nn.functional.scaled_dot_product_attention(
            *inputs, is_causal=bool(m.kernel.dim("causal", 0.0))
        )
    grad = m.tensor(*shape)
    return PreparedCall(lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True), (grad,))


def _optimizer(m: Operands) -> PreparedCall:
    each = max(m.dim("elements") // m.dim("tensors"), 1)
    parameters = [m.tensor(each) for _ in range(m.dim("tensors"))]
    gradients = [m.tensor(each) for _ in range(m.dim("tensors"))]
    return PreparedCall(lambda: torch._foreach_add_(parameters, gradients, alpha=-1e-3))


def _sort(m: Operands) -> PreparedCall:
    x = m.indices(m.dim("elements"), 1 << 30)
    return PreparedCall(lambda: torch.sort(x), (x,))


def _conv_operands(m: Operands) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, int]]:
    """Input, weight, gradient of the output, and the arguments of the call."""
    groups = m.dim("groups")
    settings = {"stride": m.dim("stride"), "padding": int(m.kernel.dim("padding", 0.0)), "groups": groups}
    x = m.tensor(m.dim("batch"), m.dim("c_in"), m.dim("h"), m.dim("w"))
    weight = m.tensor(m.dim("c_out"), m.dim("c_in") // groups, m.dim("kh"), m.dim("kw"))
    grad = torch.nn.functional.conv2d(x, weight, **settings)
    return x, weight, grad, settings


def _conv(m: Operands) -> PreparedCall:
    x, weight, _, settings = _conv_operands(m)
    return PreparedCall(lambda: torch.nn.functional.conv2d(x, weight, **settings), (x,))


def _conv_backward(*, input_gradient: bool) -> Callable[[Operands], PreparedCall]:
    wanted = [input_gradient, not input_gradient, False]

    def build(m: Operands) -> PreparedCall:
        x, weight, grad, s = _conv_operands(m)
        stride, padding, one = [s["stride"]] * 2, [s["padding"]] * 2, [1, 1]
        backward = torch.ops.aten.convolution_backward
        return PreparedCall(
            lambda: backward(
                grad, x, weight, None, stride, padding, one, False, [0, 0], s["groups"], wanted
            ),
            (grad,),
        )  # fmt: skip

    return build


def _pool(m: Operands) -> PreparedCall:
    """A window of 2 × 2: four values read for each one written."""
    side = max(int((m.dim("write_bytes") // 4 / 16) ** 0.5), 1)
    x = m.tensor(1, 16, 2 * side, 2 * side)
    return PreparedCall(lambda: torch.nn.functional.max_pool2d(x, 2), (x,))


def _batch_norm(m: Operands) -> PreparedCall:
    """``rows`` channels of ``cols`` values each."""
    channels = m.dim("rows")
    x, weight, bias = m.tensor(1, channels, m.dim("cols")), m.tensor(channels), m.tensor(channels)
    norm = torch.nn.functional.batch_norm
    return PreparedCall(lambda: norm(x, None, None, weight, bias, True), (x,))


def _batch_norm_backward(m: Operands) -> PreparedCall:
    channels = m.dim("rows")
    x, grad = (m.tensor(1, channels, m.dim("cols")) for _ in range(2))
    weight, mean, invstd = (m.tensor(channels) for _ in range(3))
    backward = torch.ops.aten.native_batch_norm_backward
    return PreparedCall(
        lambda: backward(grad, x, weight, None, None, mean, invstd, True, 1e-5, [True, True, True]), (grad,)
    )


IMAGE_BUILDERS: dict[str, Callable[[Operands], PreparedCall]] = {
    "conv": _conv,
    "conv_dgrad": _conv_backward(input_gradient=True),
    "conv_wgrad": _conv_backward(input_gradient=False),
    "pool": _pool,
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm_backward,
}


_BUILDERS: dict[str, Callable[[Operands], PreparedCall]] = {
    "gemm": _gemm,
    "elementwise": _elementwise,
    "softmax": _rowwise(lambda x: torch.softmax(x, -1), 1),
    "softmax_backward": _rowwise(
        lambda g, y: torch.ops.aten._softmax_backward_data(g, y, -1, torch.float32), 2
    ),
    "layer_norm": _layer_norm,
    "layer_norm_backward": _layer_norm_backward,
    "reduce": _reduce,
    "dropout": _dropout,
    "gather": _gather,
    "scatter": _scatter,
    "concat": _concat,
    "transpose": _transpose,
    "sort": _sort,
    "copy_d2d": _copy,
    "copy_h2d": _copy_across(True),
    "copy_d2h": _copy_across(False),
    "fill": _fill,
    "nll_loss": _nll_loss,
    "nll_loss_backward": _nll_loss_backward,
    "attention": _attention,
    "attention_backward": _attention_backward,
    "optimizer": _optimizer,
    **IMAGE_BUILDERS,
}
