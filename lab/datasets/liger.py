"""liger_kernels.csv: operators of language models by provider, as the kernels that each launches.

A reading is the median of CUDA events around a forward, a backward or both, with the cache flushed before it.
Short operators read the host (autograd, Triton's launcher), so rows below `SHORTEST_US` are left out and
counted; so are operators whose kernels are not listed here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.datasets.folder import read_csv
from stepsight.dtypes import dtype_bytes
from stepsight.hardware.gpus import find_gpu
from stepsight.program.job import Kernel

FILE = "liger_kernels.csv"
SHORTEST_US = {"forward": 60.0, "backward": 300.0, "full": 400.0}
"""Readings below these are the host's in every provider."""
GPUS = {"A100-SXM4-80GB": "A100-SXM4-80G", "H100": "H100-SXM-80G", "B200": "B200-SXM-180G",
        "RTX 3090": "RTX-3090", "RTX 4090": "RTX-4090"}  # fmt: skip
WITH_FORWARD = frozenset({"megatron_swiglu"})
"""Operators whose backward readings hold the forward, too: both readings are equal."""
Passes = tuple[list[Kernel], list[Kernel]]
Sizes = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """One reading and the kernels after it."""

    name: str
    provider: str
    mode: str
    gpu: str
    time_us: float
    kernels: tuple[Kernel, ...]


def rows(data: Path) -> tuple[list[Row], dict[str, int]]:
    """Readings that are expressed as kernels, and how many are not, by reason."""
    found: list[Row] = []
    left_out: dict[str, int] = {}
    for record in read_csv(data / "kernels" / FILE):
        if record["metric_name"] != "speed":
            continue
        row, why = _row(record)
        if row is None:
            left_out[why] = left_out.get(why, 0) + 1
        else:
            found.append(row)
    return found, left_out


def _row(record: Mapping[str, str]) -> tuple[Row | None, str]:
    name, mode, provider = record["kernel_name"], record["kernel_operation_mode"], record["kernel_provider"]
    gpu = next((ours for theirs, ours in GPUS.items() if theirs in record["gpu_name"]), "")
    time_us = 1e3 * float(record["y_value_50"] or 0)
    rule = OPERATORS.get(name)
    if rule is None or find_gpu(gpu) is None:
        return None, f"no kernels for {name}" if rule is None else f"unknown GPU {record['gpu_name']}"
    if time_us < SHORTEST_US[mode]:
        return None, "short: the host's time"
    config = json.loads(record["extra_benchmark_config_str"] or "{}")
    sizes = {k: float(v) for k, v in config.items() if isinstance(v, (int, float)) and v is not True}
    sizes[record["x_name"]] = float(record["x_value"])
    dtype = {"torch.float32": "fp32", "torch.float16": "fp16"}.get(str(config.get("dtype", "")), "bf16")
    passes = rule(sizes, dtype, provider)
    if passes is None:
        return None, f"no kernels for {name} by {provider}"
    forward, backward = passes
    if name in WITH_FORWARD:
        backward = [*forward, *backward] if mode == "backward" else backward
    whole = backward if name == "megatron_cross_entropy" else [*forward, *backward]
    asked = {"forward": forward, "backward": backward, "full": whole}[mode]
    return Row(name, provider, mode, gpu, time_us, tuple(asked)), ""


def streams(dtype: str, n: float, *kernels: tuple[str, float, float]) -> list[Kernel]:
    """Element-wise kernels over ``n`` elements: operator, bytes read and written per element. A star after
    the operator: operands are broadcast or strided."""
    return [
        Kernel.of(
            "elementwise", dtype, operator=name.rstrip("*"), elements=n, read_bytes=reads * n,
            write_bytes=writes * n, indexed=float(name.endswith("*")),
        )
        for name, reads, writes in kernels
    ]  # fmt: skip


def matrix(family: str, dtype: str, rows: float, cols: float, operator: str = "") -> Kernel:
    return Kernel.of(family, dtype, operator=operator, rows=rows, cols=cols)


def accumulate(dtype: str, n: float) -> list[Kernel]:
    """A leaf's gradient is added to that of the repetition before."""
    e = dtype_bytes(dtype)
    return streams(dtype, n, ("add", 2 * e, e))


def _eager(provider: str) -> bool:
    return provider in ("huggingface", "torch", "megatron-unfused")


def _log_softmax_loss(dtype: str, n: float, v: float) -> Passes:
    """log_softmax and nll_loss as torch runs them."""
    return (
        [matrix("softmax", dtype, n, v, "log_softmax"), matrix("nll_loss", dtype, n, v)],
        [matrix("nll_loss_backward", dtype, n, v),
         matrix("softmax_backward", dtype, n, v, "_log_softmax_backward_data")],
    )  # fmt: skip


def cross_entropy(s: Sizes, _: str, provider: str) -> Passes | None:
    """fp32 logits. Fused: one pass for the sum, one writes the gradient."""
    n, v = s["B"] * s["T"], s["V"]
    if _eager(provider):
        return _log_softmax_loss("fp32", n, v)
    return streams("fp32", n * v, ("loss", 8, 4)), streams("fp32", n * v, ("copy", 4, 4))


def megatron_cross_entropy(s: Sizes, _: str, provider: str) -> Passes | None:
    if provider != "liger":
        return None
    n = s["S"] * s["B"] * s["V"]
    return streams("fp32", n, ("loss", 8, 0)), streams("fp32", n, ("loss", 8, 4), ("mul", 4, 4))


def layer_norm(s: Sizes, dtype: str, provider: str) -> Passes | None:
    rows, cols, e = s["M"], s["N"], dtype_bytes(dtype)
    if _eager(provider):
        backward = [matrix(f"layer_norm_{part}", dtype, rows, cols) for part in ("backward", "weights")]
        return [matrix("layer_norm", dtype, rows, cols)], backward
    n = rows * cols
    backward = [*streams(dtype, n, ("triton_per_norm", 2 * e, e)), *accumulate(dtype, n)]
    return streams(dtype, n, ("triton_per_norm", e, e)), backward


def _rms_eager(dtype: str, rows: float, cols: float) -> Passes:
    """Llama's module as transformers writes it out."""
    n, e = rows * cols, dtype_bytes(dtype)
    to_fp32 = streams(dtype, n, ("cast", e, 4)) if e < 4 else []
    to_half = streams("fp32", n, ("cast", 4, e)) if e < 4 else []
    forward = [
        *to_fp32,
        *streams("fp32", n, ("pow", 4, 4)),
        matrix("reduce", "fp32", rows, cols, "mean"),
        *streams("fp32", n, ("mul*", 4, 4)),
        *to_half,
        *streams(dtype, n, ("mul*", e, e)),
    ]
    backward = [
        *streams(dtype, n, ("mul", 2 * e, e)),
        matrix("reduce", dtype, cols, rows, "sum"),
        *streams(dtype, n, ("mul*", e, e)),
        *to_fp32,
        *streams("fp32", n, ("mul*", 4, 4), ("mul", 8, 4)),
        matrix("reduce", "fp32", rows, cols, "sum"),
        *streams("fp32", n, ("div*", 0, 4), ("pow", 4, 4), ("mul", 4, 4), ("mul", 8, 4), ("add", 8, 4)),
        *to_half,
    ]
    return forward, backward


def rms_norm(s: Sizes, dtype: str, provider: str) -> Passes | None:
    rows, cols = s["M"], s["H"]
    if _eager(provider):
        return _rms_eager(dtype, rows, cols)
    backward = [matrix("rms_norm_backward", dtype, rows, cols), *accumulate(dtype, rows * cols)]
    return [matrix("rms_norm", dtype, rows, cols)], backward


def fused_add_rms_norm(s: Sizes, dtype: str, provider: str) -> Passes | None:
    rows, cols = s["M"], s["H"]
    n, e = rows * cols, dtype_bytes(dtype)
    added, back = streams(dtype, n, ("add", 2 * e, e)), matrix("rms_norm_backward", dtype, rows, cols)
    if _eager(provider):
        forward, backward = _rms_eager(dtype, rows, cols)
        return [*added, *forward], [*backward, *added * 2]
    if provider == "liger_rms_norm":
        return [*added, matrix("rms_norm", dtype, rows, cols)], [back, *added * 3]
    return streams(dtype, n, ("triton_per_norm", 2 * e, 2 * e)), [back]


def megatron_rms_norm(s: Sizes, dtype: str, provider: str) -> Passes | None:
    rows, cols = s["S"] * s["B"], s["H"]
    if provider == "liger":
        return [matrix("rms_norm", dtype, rows, cols)], [matrix("rms_norm_backward", dtype, rows, cols)]
    backward = [matrix(f"layer_norm_{part}", dtype, rows, cols) for part in ("backward", "weights")]
    return [matrix("layer_norm", dtype, rows, cols)], [*backward, *accumulate(dtype, rows * cols)]


def relu_squared(s: Sizes, dtype: str, provider: str) -> Passes | None:
    n, e = s["M"] * s["N"], dtype_bytes(dtype)
    if _eager(provider):
        backward = streams(dtype, n, ("mul", e, e), ("mul", 2 * e, e), ("threshold_backward", 2 * e, e))
        return streams(dtype, n, ("relu", e, e), ("relu", e, e)), backward
    return streams(dtype, n, ("triton_poi", e, e)), streams(dtype, n, ("triton_poi", 2 * e, e))


def _joined(dtype: str, bytes_: float) -> Kernel:
    return Kernel.of("concat", dtype, read_bytes=bytes_, write_bytes=bytes_, inputs=2)


def megatron_swiglu(s: Sizes, dtype: str, provider: str) -> Passes | None:
    """The two halves lie in one tensor; ``ffn_local`` is the width of each."""
    n, e = s["S"] * s["B"] * s["ffn_local"], dtype_bytes(dtype)
    if provider == "torch":
        halves = ("mul*", 2 * e, e), ("mul", 2 * e, e), ("silu_backward*", 2 * e, e)
        backward = [*streams(dtype, n, *halves), _joined(dtype, 2 * e * n)]
        return streams(dtype, n, ("silu*", e, e), ("mul*", 2 * e, e)), backward
    if provider.startswith("liger"):
        return streams(dtype, n, ("triton_poi", 2 * e, e)), streams(dtype, n, ("triton_poi", 3 * e, 2 * e))
    return None


def _products(dtype: str, tokens: float, width: float, depth: float) -> list[Kernel]:
    """A linear layer, and the gradients of its input and of its weight."""
    roles = {
        "linear": (tokens, width, depth),
        "dgrad": (tokens, depth, width),
        "wgrad": (width, depth, tokens),
    }
    return [Kernel.of("gemm", dtype, operator=role, m=m, n=n, k=k) for role, (m, n, k) in roles.items()]


def _gated(s: Sizes, dtype: str, provider: str, tokens: float, act: str) -> Passes:
    hidden, ffn, e = s["hidden_size"], s["intermediate_size"], dtype_bytes(dtype)
    up, *up_grads = _products(dtype, tokens, ffn, hidden)
    down, *down_grads = _products(dtype, tokens, hidden, ffn)
    middle, back = [(act, e, e), ("mul", 2 * e, e)], [("mul", 2 * e, e)] * 2 + [(f"{act}_backward", 2 * e, e)]
    if not _eager(provider):
        middle, back = [("triton_poi", 2 * e, e)], [("triton_poi", 3 * e, 2 * e)]
    n = tokens * ffn
    grads = [*down_grads, *up_grads * 2, *streams(dtype, n, *back), *accumulate(dtype, tokens * hidden)]
    return [up, up, *streams(dtype, n, *middle), down], grads


def geglu(s: Sizes, dtype: str, provider: str) -> Passes | None:
    return _gated(s, dtype, provider, s["bsz"] * s["T"], "gelu")


def swiglu(s: Sizes, dtype: str, provider: str) -> Passes | None:
    return _gated(s, dtype, provider, s["B"] * s["T"], "silu")


def embedding(s: Sizes, dtype: str, provider: str) -> Passes | None:
    lookups, dim, table, e = s["B"] * s["T"], s["D"], s["V"], dtype_bytes(dtype)

    def scattered(operator: str, table_rows: float) -> Kernel:
        return Kernel.of("scatter", dtype, operator=operator, rows=lookups, cols=dim, table_rows=table_rows)

    if provider == "huggingface":
        pick = [Kernel.of("gather", dtype, operator="embedding", rows=lookups, cols=dim, table_rows=table)]
        grads = [Kernel.of("sort", "int64", elements=lookups), scattered("embedding_dense_backward", table)]
    else:
        pick = streams(dtype, lookups * dim, ("triton_poi", e, e))
        add = "atomic_add" if provider == "liger" else "index_put_direct"
        grads = [Kernel.of("fill", dtype, bytes=e * table * dim), scattered(add, 1)]
    return pick, [*grads, *accumulate(dtype, table * dim)]


def tvd(s: Sizes, _: str, provider: str) -> Passes | None:
    """Total variation distance of two fp32 distributions; its backward goes on through a softmax, whose
    gradient and result are read twice."""
    n = s["B"] * s["T"] * s["V"]
    end = [*streams("fp32", n, ("softmax_backward", 16, 4)), *accumulate("fp32", n)]
    if not _eager(provider):
        return streams("fp32", n, ("triton_poi", 8, 4)), [*streams("fp32", n, ("mul", 4, 4)), *end]
    total = Kernel.of("reduce", "fp32", operator="sum", rows=1, cols=n)
    backward = streams("fp32", n, ("div*", 0, 4), ("mul", 4, 4), ("sgn", 4, 4), ("mul", 8, 4))
    return [*streams("fp32", n, ("sub", 8, 4), ("abs", 4, 4), ("mul", 4, 4)), total], [*backward, *end]


def _rope_sizes(s: Sizes) -> tuple[float, float]:
    heads, size = s["num_q_heads"] + s["num_kv_heads"], s.get("hidden_size", s.get("H", 0.0))
    return s.get("seq_len", s.get("T", 0.0)) * heads * size / s["num_q_heads"], size / s["num_q_heads"]


def rope(s: Sizes, dtype: str, provider: str) -> Passes | None:
    """Queries and keys; eager: negated halves joined, two products with tables of angles, a sum."""
    n, head = _rope_sizes(s)
    e = dtype_bytes(dtype)
    if not _eager(provider):
        one = matrix("rotary", dtype, n / head, head)
        return [one], [one]
    negated, times = streams(dtype, n / 2, ("neg*", e, e)), ("mul*", e, e)
    halves = [Kernel.of("fill", dtype, bytes=e * n), *streams(dtype, n / 2, ("copy*", e, e))] * 2
    added = ("add*", 2 * e, e)
    forward = [*negated, _joined(dtype, e * n), *streams(dtype, n, times, times, added)]
    return forward, [*streams(dtype, n, times, times, added, added), *negated, *halves]


def llama4_rope(s: Sizes, dtype: str, provider: str) -> Passes | None:
    """Eager: pairs as complex numbers in fp32, one product, and back."""
    n, head = _rope_sizes(s)
    e = dtype_bytes(dtype)
    turn = [matrix("rotary", dtype, n / head, head)]
    if _eager(provider):
        turn = [*streams(dtype, n, ("cast", e, 4)), *streams("fp32", n, ("mul*", 4, 4), ("cast", 4, e))]
    return turn, turn


def fused_linear_cross_entropy(s: Sizes, dtype: str, provider: str) -> Passes | None:
    """A head and its loss; fused: in chunks, with the gradients made by the forward."""
    rows, hidden, vocab, e = s["BT"], s["H"], s["V"], dtype_bytes(dtype)
    products = _products(dtype, rows, vocab, hidden)
    if _eager(provider):
        loss, back = _log_softmax_loss(dtype, rows, vocab)
        return [products[0], *loss], [*back, *products[1:]]
    loss = streams(dtype, rows * vocab, ("loss", 2 * e, e))
    return [*products, *loss], streams(dtype, vocab * hidden, ("copy", e, e))


OPERATORS: Mapping[str, Callable[[Sizes, str, str], Passes | None]] = {
    "cross_entropy": cross_entropy, "megatron_cross_entropy": megatron_cross_entropy,
    "layer_norm": layer_norm, "rms_norm": rms_norm, "fused_add_rms_norm": fused_add_rms_norm,
    "megatron_rms_norm": megatron_rms_norm, "relu_squared": relu_squared, "megatron_swiglu": megatron_swiglu,
    "geglu": geglu, "swiglu": swiglu, "embedding": embedding, "tvd": tvd, "rope": rope,
    "llama4_rope": llama4_rope, "fused_linear_cross_entropy": fused_linear_cross_entropy,
}  # fmt: skip


def kernels_of(found: Sequence[Row]) -> list[Kernel]:
    """Every distinct kernel of some rows."""
    return list(dict.fromkeys(kernel for row in found for kernel in row.kernels))
