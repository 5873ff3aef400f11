"""The kernels of the operators that language models are made of, both ways.

Each function gives the forward kernels, the backward kernels and the bytes it keeps between the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stepsight.dtypes import dtype_bytes
from stepsight.program.job import Kernel


@dataclass(slots=True)
class ForwardBackward:
    """An operator's kernels forward and backward, and what it keeps."""

    forward: list[Kernel] = field(default_factory=list)
    backward: list[Kernel] = field(default_factory=list)
    kept_bytes: float = 0.0

    def __iadd__(self, other: ForwardBackward) -> ForwardBackward:
        self.forward += other.forward
        self.backward = other.backward + self.backward
        self.kept_bytes += other.kept_bytes
        return self


def stream(name: str, dtype: str, elements: float, reads: float, writes: float) -> Kernel:
    """An element-wise kernel that reads and writes this many bytes an element."""
    return Kernel.of("elementwise", dtype, operator=name, elements=elements, read_bytes=reads * elements,
                     write_bytes=writes * elements)  # fmt: skip


def streams(dtype: str, elements: float, *passes: tuple[str, float, float]) -> list[Kernel]:
    """Element-wise kernels one after the other: the name of each, and its bytes an element."""
    return [stream(name, dtype, elements, reads, writes) for name, reads, writes in passes]


def linear(
    product: str,
    dtype: str,
    tokens: float,
    out: float,
    into: float,
    *,
    bias: bool = False,
    batch: int = 1,
    cast_input: bool = True,
    cast_weight: bool = True,
    scaling: str = "delayed",
) -> ForwardBackward:
    """x · Wᵀ: the product, and its two gradients. Keeps nothing: its input belongs to whoever made it.

    In fp8 input, weight and gradient are cast first, each also transposed for the backward products;
    ``cast_input`` is false where the kernel that makes the input writes it in fp8 (norms and activations do).
    ``scaling``: delayed (by earlier steps' largest values) and block (by each block's) need one pass, current
    one more, which finds the tensor's largest value, so that no other kernel can write fp8; row scales along
    the dimension that a product sums over, so that both directions cast for themselves: rows are read once,
    columns once more for their largest values.
    """

    def gemm(name: str, m: float, n: float, k: float) -> Kernel:
        return Kernel.of("gemm", product, operator=name, batch=batch, m=m, n=n, k=k)

    both = ForwardBackward(
        [gemm("linear", tokens, out, into)],
        [gemm("dgrad", tokens, into, out), gemm("wgrad", out, into, tokens)],
    )
    if product in ("fp8", "fp4"):
        # NVFP4 has a scale of the whole tensor, too
        current = scaling in ("current", "row") or product == "fp4"
        reads = 6 if scaling == "row" else 4 if current else 2
        casts = [stream("cast_fp8", dtype, batch * tokens * into, reads, 2)] if cast_input or current else []
        casts += [stream("cast_fp8", dtype, batch * out * into, reads, 2)] if cast_weight else []
        both.forward[:0] = casts
        both.backward.insert(0, stream("cast_fp8", dtype, batch * tokens * out, reads, 2))
    if bias:
        both.backward.append(Kernel.of("reduce", dtype, operator="bias", rows=out, cols=tokens))
    return both


def adapter(
    dtype: str, tokens: float, out: float, into: float, rank: int, *, own: float, decomposed: bool
) -> ForwardBackward:
    """The low-rank path of LoRA: dropout, x · Aᵀ · Bᵀ, added to the frozen product.

    ``own``: tokens of the first product. ``decomposed`` (DoRA): also the norm of W + B·A and a scale."""
    e = dtype_bytes(dtype)

    def gemm(m: float, n: float, k: float) -> Kernel:
        return Kernel.of("gemm", dtype, operator="adapter", batch=1, m=m, n=n, k=k)

    down, up = gemm(own, rank, into), gemm(tokens, out, rank)
    both = ForwardBackward(
        [
            stream("dropout", dtype, own * into, e, e + 1), down, up,
            stream("add", dtype, tokens * out, 2 * e, e),
        ],
        [
            gemm(tokens, rank, out), gemm(out, rank, tokens), gemm(own, into, rank), gemm(rank, into, own),
            stream("add", dtype, own * into, 2 * e + 1, e),
        ],
        own * into + e * own * rank,
    )  # fmt: skip
    if decomposed:
        norms = [gemm(out, into, rank), stream("weight norm", dtype, out * into, 2 * e, 0)]
        scale = stream("mul", dtype, tokens * out, e, e)
        both += ForwardBackward([*norms, scale], [scale, scale], e * tokens * out)
    return both


def norm(kind: str, dtype: str, rows: float, hidden: int, *, fused: bool) -> ForwardBackward:
    """Layer or RMS norm; keeps its input. An RMS norm that is not fused is written out in PyTorch."""
    e, n = dtype_bytes(dtype), rows * hidden

    def of(family: str, name: str) -> Kernel:
        return Kernel.of(family, dtype, operator=name, rows=rows, cols=hidden)

    if kind == "layer":
        return ForwardBackward(
            [of("layer_norm", "layer_norm")],
            [of("layer_norm_backward", "layer_norm"), of("layer_norm_weights", "norm weight")],
            e * n,
        )
    name = "rms_norm" if fused else "eager"
    kept = e * n if fused else (2 * e + 4) * n
    return ForwardBackward([of("rms_norm", name)], [of("rms_norm_backward", name)], kept)


def flash(
    dtype: str,
    name: str,
    batch: int,
    heads: int,
    kv_heads: int,
    q: int,
    kv: int,
    head_dim: int,
    *,
    causal: bool,
    window: int = 0,
) -> ForwardBackward:
    """Fused attention; keeps its output and the row sums."""

    def kernel(family: str) -> Kernel:
        made = Kernel.of(
            family, dtype, operator=name, batch=batch, heads=heads, kv_heads=kv_heads, q=q, kv=kv,
            head_dim=head_dim, causal=int(causal),
        )  # fmt: skip
        return replace(made, dims=(*made.dims, ("window", window))) if window else made

    return ForwardBackward([kernel("attention")], [kernel("attention_backward")])


def plain_attention(
    dtype: str,
    batch: int,
    heads: int,
    q: int,
    kv: int,
    head_dim: int,
    dropout: float,
    *,
    fused: bool,
    product: str = "",
) -> ForwardBackward:
    """Products, scale, mask, softmax and dropout, operator by operator or with Megatron's fused softmax."""
    e, stack = dtype_bytes(dtype), batch * heads
    n = float(stack) * q * kv

    def bmm(m: int, cols: int, k: int) -> Kernel:
        return Kernel.of("gemm", product or dtype, operator="bmm", batch=stack, m=m, n=cols, k=k)

    both = ForwardBackward([bmm(q, kv, head_dim)], [bmm(q, head_dim, kv), bmm(kv, head_dim, q)])
    if fused:
        both += ForwardBackward(
            [stream("scaled_masked_softmax", dtype, n, e / 2, e)],
            [stream("scaled_masked_softmax_backward", dtype, n, e, e)],
            e * n,
        )
    else:
        rows = float(stack) * q
        mask, widen = stream("masked_fill", dtype, n, e + 1, e), stream("cast", "fp32", n, e, 4)
        narrow = stream("cast", dtype, n, 4, e)
        both += ForwardBackward(
            [mask, widen, Kernel.of("softmax", "fp32", rows=rows, cols=kv), narrow],
            [widen, Kernel.of("softmax_backward", "fp32", rows=rows, cols=kv), narrow, mask],
            (4 + e) * n,
        )
    if dropout:
        both += ForwardBackward(
            [Kernel.of("dropout", dtype, elements=n)], [stream("mul", dtype, n, e + 1, e)], (1 + e) * n
        )
    both += ForwardBackward([bmm(q, head_dim, kv)], [bmm(kv, head_dim, q), bmm(q, kv, head_dim)])
    return both


def rotary(dtype: str, elements: float, head_dim: int, *, fused: bool) -> ForwardBackward:
    """Rotary positions of queries and keys."""
    rows, name = elements / head_dim, "rotary" if fused else "eager"
    forward, backward = (
        Kernel.of(family, dtype, operator=name, rows=rows, cols=head_dim)
        for family in ("rotary", "rotary_backward")
    )
    return ForwardBackward([forward], [backward])


def activation(
    dtype: str, tokens: float, ffn: float, *, gated: bool, fused: bool, bias: bool
) -> ForwardBackward:
    """SwiGLU of two projections, or GELU of one (with its bias); keeps what it reads and what it makes."""
    e, n = dtype_bytes(dtype), tokens * ffn
    if not gated:
        back = [stream("bias_gelu_backward", dtype, n, 2 * e, e)]
        if bias:
            back.append(Kernel.of("reduce", dtype, operator="bias", rows=ffn, cols=tokens))
        return ForwardBackward([stream("bias_gelu", dtype, n, e, e)], back, 2 * e * n)
    if fused:
        return ForwardBackward(
            [stream("swiglu", dtype, n, 2 * e, e)],
            [stream("swiglu_backward", dtype, n, 3 * e, 2 * e)],
            3 * e * n,
        )
    mul = ("mul", 2 * e, e)
    back = streams(dtype, n, mul, mul, ("silu_backward", 2 * e, e))
    back.append(stream("cat", dtype, 2 * n, e, e))
    return ForwardBackward(streams(dtype, n, ("silu", e, e), mul), back, 4 * e * n)


def tanh_gelu(dtype: str, elements: float, *, wide: bool) -> ForwardBackward:
    """GELU by its tanh formula, written out: 0.5 x (1 + tanh(c (x + 0.044715 x³))).

    ``wide``: autocast takes the power in fp32, and everything after it. Keeps its input and result, in fp32
    also the power's input and what tanh gave: so much more does GPT-2 large hold under autocast, and no more
    in half precision throughout (library models).
    """
    e = dtype_bytes(dtype)
    w, kind = (4, "fp32") if wide else (e, dtype)

    forward = [
        *streams(kind, elements, *([("cast", e, 4)] if wide else [])),
        stream("mul", dtype, elements, e, e),
        *streams(kind, elements, ("pow", w, w), ("mul", w, w), ("add", e + w, w), ("mul", w, w),
                 ("tanh", w, w), ("add", w, w), ("mul", e + w, w)),
    ]  # fmt: skip
    product, scale, total = ("mul", 2 * w, w), ("mul", w, w), ("add", 2 * w, w)
    backward = streams(
        kind, elements, product, product, ("tanh_backward", 2 * w, w), scale, scale, scale, ("pow", w, w),
        product, product, total, total,
    )  # fmt: skip
    return ForwardBackward(forward, backward, (2 * e + (2 * w if wide else 0)) * elements)


def residual(dtype: str, elements: float, dropout: float, *, fused: bool) -> ForwardBackward:
    """x + dropout(y); the fused kernel also adds the bias of y."""
    e = dtype_bytes(dtype)
    if dropout == 0.0:
        return ForwardBackward([stream("add", dtype, elements, 2 * e, e)], [])
    if fused:
        return ForwardBackward(
            [stream("bias_dropout_add", dtype, elements, 2 * e, e + 1)],
            [stream("bias_dropout_add_backward", dtype, elements, e + 1, e)],
            elements,
        )
    return ForwardBackward(
        [Kernel.of("dropout", dtype, elements=elements), stream("add", dtype, elements, 2 * e, e)],
        [stream("mul", dtype, elements, e + 1, e)],
        elements,
    )


def loss(dtype: str, tokens: float, vocab: float, *, fused: bool, split: bool) -> ForwardBackward:
    """Cross entropy of the logits; ``split``: over a vocabulary that several ranks hold."""
    e, n = dtype_bytes(dtype), tokens * vocab
    if fused:
        return ForwardBackward(
            [stream("cross_entropy", dtype, n, e, 0), stream("cross_entropy", dtype, n, e, e)], [], e * n
        )

    def rows(name: str) -> Kernel:
        return Kernel.of("reduce", "fp32", operator=name, rows=tokens, cols=vocab)

    wide = [stream("cast", "fp32", n, e, 4)]
    narrow = [stream("cast", dtype, n, 4, e)]
    if split:
        sub, exp, div = streams("fp32", n, ("sub", 4, 4), ("exp", 4, 4), ("div", 4, 4))
        forward = [*wide, rows("max"), sub, exp, rows("sum"), div]
        return ForwardBackward(forward, [stream("mul", "fp32", n, 4, 4), *narrow], (e + 4) * n)

    def by_class(family: str) -> Kernel:
        return Kernel.of(family, "fp32", rows=tokens, cols=vocab)

    forward = [*wide, by_class("softmax"), by_class("nll_loss")]
    backward = [by_class("nll_loss_backward"), by_class("softmax_backward"), *narrow]
    return ForwardBackward(forward, backward, 4 * n)  # ln of the probabilities


def loss_metric(dtype: str, tokens: float, vocab: float, *, wide: bool) -> ForwardBackward:
    """A training metric that evaluates cross entropy from the logits once more, operator by operator;
    ``wide``: autocast takes it in fp32."""
    kind, cast = dtype, list[Kernel]()
    if wide and dtype != "fp32":
        kind, cast = "fp32", [stream("cast", "fp32", tokens * vocab, dtype_bytes(dtype), 4)]
    families = ("softmax", "nll_loss")
    return ForwardBackward([*cast, *(Kernel.of(f, kind, rows=tokens, cols=vocab) for f in families)])
