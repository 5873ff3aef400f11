"""The kernel families: which sizes each has, and the work they imply.

A family is what the models are fitted for. ``work`` turns sizes into FLOPs and DRAM
bytes; with a GPU's peaks that is the speed of light, the least time physics allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray

Dims = Mapping[str, FloatArray]

ROWS = 128
"""Query rows of a thread block in FlashAttention-2's forward, keys of one in its backward."""
STEP = 64
"""Keys (forward) or queries (backward) that a thread block takes at a time, for heads of 128."""


def visible_pairs(d: Dims) -> FloatArray:
    """Query-key pairs of one head that the mask leaves: what the result needs.

    ``window`` is the most keys a query sees (0: no limit); with a causal mask they lie before it.
    The last query sees the last key, so ``kv - q`` keys lie before the first query.
    """
    q, kv = np.maximum(d["q"], 1.0), np.maximum(d["kv"], 1.0)
    full = q * kv
    causal = np.where(kv >= q, full - q * (q - 1) / 2, kv * (kv + 1) / 2)
    window = np.where(d["window"] > 0, np.minimum(d["window"], kv), kv)
    # The first queries of a causal window still see fewer keys than it is wide.
    ramp = np.maximum(0.0, np.minimum(q, window - (kv - q)))
    banded = q * window - ramp * (ramp - 1) / 2
    masked = np.where(d["causal"] > 0, np.minimum(causal, banded), np.minimum(full, q * window))
    return np.asarray(np.maximum(masked, 1.0))


def tiled_pairs(d: Dims) -> FloatArray:
    """Pairs of one head that whole tiles compute: the mask's edge costs the tiles it crosses."""
    q = np.ceil(np.maximum(d["q"], 1.0) / ROWS) * ROWS
    kv = np.ceil(np.maximum(d["kv"], 1.0) / STEP) * STEP
    full = q * kv
    before = np.maximum(kv - q, 0.0)
    causal = np.minimum(full, q * before + (q * q + q * ROWS) / 2)
    masked = np.where(d["causal"] > 0, causal, full)
    shorter = np.where(d["causal"] > 0, np.clip(d["window"] - before, 0.0, q), 0.0)  # first rows of the band
    banded = np.where(d["window"] > 0, q * (d["window"] + ROWS) - shorter**2 / 2, np.inf)
    return np.asarray(np.minimum(masked, banded))


def thread_blocks(d: Dims, along: str) -> FloatArray:
    """Thread blocks of all heads; ``along`` is the axis they share out: q forward, kv backward."""
    return np.asarray(np.ceil(np.maximum(d[along], 1.0) / ROWS) * d["batch"] * d["heads"])


@dataclass(frozen=True, slots=True)
class Family:
    """Name, the sizes it needs, its category in reports, FLOPs and bytes moved.

    ``flops`` and ``bytes`` take the columns of sizes and the bytes of one element.
    """

    name: str
    dims: tuple[str, ...]
    category: str
    flops: Callable[[Dims], FloatArray]
    bytes: Callable[[Dims, FloatArray], FloatArray]


def _zero(d: Dims) -> FloatArray:
    return np.zeros_like(next(iter(d.values())))


def _sort_bytes(d: Dims, e: FloatArray) -> FloatArray:
    """Keys are read once to be counted; every pass reads and writes keys and 64-bit positions."""
    passes = np.where(d["passes"] > 0, d["passes"], e)
    return np.asarray(d["elements"] * (2 * passes * (e + 8) + e))


def _gemm_bytes(d: Dims, e: FloatArray) -> FloatArray:
    left, right = (np.where(d["shared"] == side, 1.0, d["batch"]) for side in (1, 2))
    return np.asarray(e * (left * d["m"] * d["k"] + right * d["k"] * d["n"] + d["batch"] * d["m"] * d["n"]))


def conv_output(d: Dims) -> tuple[FloatArray, FloatArray]:
    """Height and width of a convolution's output."""
    h = np.floor((d["h"] + 2 * d["padding"] - d["kh"]) / d["stride"]) + 1
    w = np.floor((d["w"] + 2 * d["padding"] - d["kw"]) / d["stride"]) + 1
    return np.maximum(h, 1), np.maximum(w, 1)


def _conv_flops(d: Dims) -> FloatArray:
    ho, wo = conv_output(d)
    return 2 * d["batch"] * d["c_out"] * ho * wo * (d["c_in"] / d["groups"]) * d["kh"] * d["kw"]


def _conv_bytes(d: Dims, e: FloatArray) -> FloatArray:
    ho, wo = conv_output(d)
    weights = d["c_out"] * (d["c_in"] / d["groups"]) * d["kh"] * d["kw"]
    return e * (d["batch"] * d["c_in"] * d["h"] * d["w"] + weights + d["batch"] * d["c_out"] * ho * wo)


def _attention_flops(d: Dims) -> FloatArray:
    return 4 * d["batch"] * d["heads"] * visible_pairs(d) * d["head_dim"]


def _attention_bytes(d: Dims, e: FloatArray) -> FloatArray:
    q_and_out = 2 * d["heads"] * d["q"]
    return e * d["batch"] * d["head_dim"] * (q_and_out + 2 * d["kv_heads"] * d["kv"])


def _rows_cols(factor: float) -> Callable[[Dims, FloatArray], FloatArray]:
    return lambda d, e: factor * e * d["rows"] * d["cols"]


def _stated(d: Dims, e: FloatArray) -> FloatArray:
    return d["read_bytes"] + d["write_bytes"]


# ``reordered``: images lie by channel, so that kernels which read them by pixel need copies.
_CONV = ("batch", "c_in", "c_out", "h", "w", "kh", "kw", "stride", "padding", "groups", "reordered")
_ATTENTION = ("batch", "heads", "kv_heads", "q", "kv", "head_dim", "causal", "window")
_MATRIX = ("rows", "cols")

FLAGS = frozenset({"reordered", "passes", "run", "shared"})
"""Sizes that say how a kernel's operands are, not how large."""

FAMILIES: dict[str, Family] = {
    f.name: f
    for f in (
        # C[b] = A[b] (m×k) · B[b] (k×n); the kind says linear, bmm, dgrad, wgrad … ``shared``: all of a batch
        # have one matrix A (1) or B (2), which was expanded.
        Family("gemm", ("batch", "m", "n", "k", "shared"), "gemm",
               lambda d: 2 * d["batch"] * d["m"] * d["n"] * d["k"], _gemm_bytes),
        # Anything that streams elements once; the kind says add, mul, gelu, cast … ``indexed``: an operand
        # is broadcast or strided, so that the kernel computes an index for every element.
        Family("elementwise", ("elements", "read_bytes", "write_bytes", "indexed"), "vector",
               lambda d: d["elements"], _stated),
        Family("softmax", _MATRIX, "vector", lambda d: 5 * d["rows"] * d["cols"], _rows_cols(2)),
        Family("softmax_backward", _MATRIX, "vector", lambda d: 4 * d["rows"] * d["cols"], _rows_cols(3)),
        Family("layer_norm", _MATRIX, "vector", lambda d: 8 * d["rows"] * d["cols"], _rows_cols(2)),
        Family("layer_norm_backward", _MATRIX, "vector", lambda d: 14 * d["rows"] * d["cols"], _rows_cols(3)),
        # The gradients of a layer norm's weight and bias: sums over the rows of two matrices.
        Family("layer_norm_weights", _MATRIX, "vector", lambda d: 4 * d["rows"] * d["cols"], _rows_cols(2)),
        # variant "eager": written out in PyTorch, several kernels; else one fused kernel.
        Family("rms_norm", _MATRIX, "vector", lambda d: 5 * d["rows"] * d["cols"], _rows_cols(2)),
        Family("rms_norm_backward", _MATRIX, "vector", lambda d: 10 * d["rows"] * d["cols"], _rows_cols(5)),
        # Rotary position embedding of `rows` heads of `cols`.
        Family("rotary", _MATRIX, "vector", lambda d: 3 * d["rows"] * d["cols"], _rows_cols(2)),
        Family("rotary_backward", _MATRIX, "vector", lambda d: 3 * d["rows"] * d["cols"], _rows_cols(2)),
        # A mask of one byte an element, laid over a matrix.
        Family("masked_fill", _MATRIX, "vector", _zero, lambda d, e: (2 * e + 1) * d["rows"] * d["cols"]),
        Family("masked_fill_backward", _MATRIX, "vector", _zero,
               lambda d, e: (2 * e + 1) * d["rows"] * d["cols"]),
        # The loss of `rows` samples over `cols` classes, logits read once; the gradient written over them.
        Family("cross_entropy", _MATRIX, "vector", lambda d: 5 * d["rows"] * d["cols"], _rows_cols(1)),
        Family("cross_entropy_backward", _MATRIX, "vector", lambda d: 3 * d["rows"] * d["cols"],
               _rows_cols(2)),
        Family("batch_norm", _MATRIX, "vector", lambda d: 8 * d["rows"] * d["cols"], _rows_cols(3)),
        Family("batch_norm_backward", _MATRIX, "vector", lambda d: 14 * d["rows"] * d["cols"], _rows_cols(5)),
        # rows outputs, each the reduction of cols inputs.
        Family("reduce", _MATRIX, "vector", lambda d: d["rows"] * d["cols"],
               lambda d, e: e * d["rows"] * (d["cols"] + 1)),
        Family("dropout", ("elements",), "vector", lambda d: 10 * d["elements"],
               lambda d, e: (2 * e + 1) * d["elements"]),
        Family("pool", ("elements", "read_bytes", "write_bytes"), "vector", lambda d: d["elements"], _stated),
        # `rows` indices pick rows of `cols` out of a table of `table_rows`.
        Family("gather", ("rows", "cols", "table_rows"), "vector", _zero,
               lambda d, e: d["rows"] * (2 * e * d["cols"] + 8)),
        # ``run``: one thread adds up this many rows of a table's row, ten at a time.
        Family("scatter", ("rows", "cols", "table_rows", "run"), "vector", _zero,
               lambda d, e: d["rows"] * (2 * e * d["cols"] + 8) + e * d["table_rows"] * d["cols"]),
        Family("concat", ("read_bytes", "write_bytes", "inputs"), "vector", _zero, _stated),
        # A strided copy: the read and the write order differ.
        Family("transpose", ("elements",), "vector", _zero, lambda d, e: 2 * e * d["elements"]),
        # A whole radix sort, keys with their values. ``passes``: digits of eight bits, 0 for all of a key's.
        Family("sort", ("elements", "passes"), "vector", _zero, _sort_bytes),
        # One kernel of a sort over `elements` keys: the kind says radix_pass, radix_histogram, radix_scan.
        Family("sort_pass", ("elements", "read_bytes", "write_bytes"), "vector", _zero, _stated),
        Family("copy_h2d", ("bytes",), "copy", _zero, lambda d, e: d["bytes"]),
        Family("copy_d2h", ("bytes",), "copy", _zero, lambda d, e: d["bytes"]),
        Family("copy_d2d", ("bytes",), "copy", _zero, lambda d, e: 2 * d["bytes"]),
        Family("fill", ("bytes",), "vector", _zero, lambda d, e: d["bytes"]),
        Family("conv", _CONV, "conv", _conv_flops, _conv_bytes),
        Family("conv_dgrad", _CONV, "conv", _conv_flops, _conv_bytes),
        Family("conv_wgrad", _CONV, "conv", _conv_flops, _conv_bytes),
        # Fused attention; the kind says which (kernels/attention.py). ``window``: the most
        # keys a query sees, 0 for no limit.
        Family("attention", _ATTENTION, "attention", _attention_flops, _attention_bytes),
        Family("attention_backward", _ATTENTION, "attention", lambda d: 2.5 * _attention_flops(d),
               lambda d, e: 2 * _attention_bytes(d, e)),
        # A multi-tensor (foreach or fused) update over `tensors` tensors.
        Family("optimizer", ("elements", "read_bytes", "write_bytes", "tensors"), "optimizer",
               lambda d: 4 * d["elements"], _stated),
        # `rows` samples; the picked log-probability of each.
        Family("nll_loss", _MATRIX, "vector", _zero, lambda d, e: d["rows"] * (e + 8)),
        Family("nll_loss_backward", _MATRIX, "vector", _zero, lambda d, e: e * d["rows"] * d["cols"]),
        # Sizes live in Kernel.lookup.
        Family("embedding", (), "embedding", _zero, lambda d, e: _zero(d)),
        Family("embedding_backward", (), "embedding", _zero, lambda d, e: _zero(d)),
        # A kernel known only by its traffic.
        Family("other", ("flops", "read_bytes", "write_bytes"), "other", lambda d: d["flops"], _stated),
    )
}  # fmt: skip


OPTIONAL = FLAGS | {
    "batch", "kv_heads", "kv", "kw", "w", "stride", "padding", "groups", "indexed", "causal", "window",
    "write_bytes", "inputs", "tensors", "table_rows", "flops",
}  # fmt: skip
"""Sizes with a usual value: one, none, or another size of the kernel."""
EITHER = {"elements": "read_bytes", "read_bytes": "elements"}
"""Sizes of which one gives the other."""


def missing_sizes(family: str, stated: Iterable[str]) -> list[str]:
    """Sizes without a usual value that are not stated."""
    given = set(stated)
    wanted = [name for name in FAMILIES[family].dims if name not in OPTIONAL]
    return [name for name in wanted if name not in given and EITHER.get(name) not in given]


def category(family: str) -> str:
    """The report category of a family; unknown families count as "other"."""
    known = FAMILIES.get(family)
    return known.category if known else "other"


PRODUCTS = ("gemm", "conv", "attention")
"""Categories whose FLOPs count: matrix products, as MFU is defined (PaLM, arXiv 2204.02311, appendix B)."""
FLASH_BACKWARD = 2.0 / 2.5
"""Flash attention computes the scores again in its backward pass: 2.5 times the forward FLOPs, of which
twice the forward is the model's own."""
