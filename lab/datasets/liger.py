"""liger_kernels.csv: operators of language models by provider, as the kernels that each launches.

A reading is the median of CUDA events around a forward, a backward or both, with the cache flushed before it.
Short operators read the host (autograd, Triton's launcher), so rows below `SHORTEST_US` are left out and
counted; so are operators whose kernels are not listed here.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
EAGER, FUSED = "eager", "fused"
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
    with (data / "kernels" / FILE).open(newline="") as file:
        for record in csv.DictReader(file):
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


def stream(name: str, dtype: str, n: float, reads: float, writes: float, *, indexed: bool = False) -> Kernel:
    """An element-wise kernel that reads and writes that many bytes per element."""
    return Kernel.of("elementwise", dtype, operator=name, elements=n, read_bytes=reads * n,
                     write_bytes=writes * n, indexed=float(indexed))  # fmt: skip


def matrix(family: str, dtype: str, rows: float, cols: float, operator: str = "") -> Kernel:
    return Kernel.of(family, dtype, operator=operator, rows=rows, cols=cols)


def accumulate(dtype: str, n: float) -> Kernel:
    """A leaf's gradient is added to that of the repetition before."""
    e = dtype_bytes(dtype)
    return stream("add", dtype, n, 2 * e, e)


def _by(provider: str) -> str:
    return EAGER if provider in ("huggingface", "torch", "megatron-unfused") else FUSED


def cross_entropy(s: Sizes, _: str, provider: str) -> Passes | None:
    """fp32 logits; torch: log_softmax and nll_loss. Fused: one pass for the sum, one writes the gradient."""
    n, v = s["B"] * s["T"], s["V"]
    if _by(provider) == EAGER:
        forward = [matrix("softmax", "fp32", n, v, "log_softmax"), matrix("nll_loss", "fp32", n, v)]
        backward = [matrix("nll_loss_backward", "fp32", n, v),
                    matrix("softmax_backward", "fp32", n, v, "_log_softmax_backward_data")]  # fmt: skip
        return forward, backward
    return [stream("loss", "fp32", n * v, 8, 4)], [stream("copy", "fp32", n * v, 4, 4)]


def megatron_cross_entropy(s: Sizes, _: str, provider: str) -> Passes | None:
    if provider != "liger":
        return None
    n = s["S"] * s["B"] * s["V"]
    both = [stream("loss", "fp32", n, 8, 4), stream("mul", "fp32", n, 4, 4)]
    return [stream("loss", "fp32", n, 8, 0)], both


def layer_norm(s: Sizes, dtype: str, provider: str) -> Passes | None:
    rows, cols = s["M"], s["N"]
    if _by(provider) == EAGER:
        forward = [matrix("layer_norm", dtype, rows, cols)]
        backward = [
            matrix("layer_norm_backward", dtype, rows, cols),
            matrix("layer_norm_weights", dtype, rows, cols),
        ]
        return forward, backward
    e = dtype_bytes(dtype)
    return (
        [stream("triton_per_norm", dtype, rows * cols, e, e)],
        [stream("triton_per_norm", dtype, rows * cols, 2 * e, e), accumulate(dtype, rows * cols)],
    )


def _rms_eager(n: float, dtype: str, rows: float, cols: float) -> Passes:
    """Llama's module as transformers writes it out."""
    e = dtype_bytes(dtype)
    to_fp32 = [stream("cast", dtype, n, e, 4)] if e < 4 else []
    to_half = [stream("cast", "fp32", n, 4, e)] if e < 4 else []
    forward = [
        *to_fp32,
        stream("pow", "fp32", n, 4, 4),
        matrix("reduce", "fp32", rows, cols, "mean"),
        stream("mul", "fp32", n, 4, 4, indexed=True),
        *to_half,
        stream("mul", dtype, n, e, e, indexed=True),
    ]
    backward = [
        stream("mul", dtype, n, 2 * e, e),
        matrix("reduce", dtype, cols, rows, "sum"),
        stream("mul", dtype, n, e, e, indexed=True),
        *to_fp32,
        stream("mul", "fp32", n, 4, 4, indexed=True),
        stream("mul", "fp32", n, 8, 4),
        matrix("reduce", "fp32", rows, cols, "sum"),
        stream("div", "fp32", n, 0, 4, indexed=True),
        stream("pow", "fp32", n, 4, 4),
        stream("mul", "fp32", n, 4, 4),
        stream("mul", "fp32", n, 8, 4),
        stream("add", "fp32", n, 8, 4),
        *to_half,
    ]
    return forward, backward


def rms_norm(s: Sizes, dtype: str, provider: str) -> Passes | None:
    rows, cols = s["M"], s["H"]
    if _by(provider) == EAGER:
        return _rms_eager(rows * cols, dtype, rows, cols)
    return (
        [matrix("rms_norm", dtype, rows, cols)],
        [matrix("rms_norm_backward", dtype, rows, cols), accumulate(dtype, rows * cols)],
    )


def fused_add_rms_norm(s: Sizes, dtype: str, provider: str) -> Passes | None:
    rows, cols = s["M"], s["H"]
    n, e = rows * cols, dtype_bytes(dtype)
    added = stream("add", dtype, n, 2 * e, e)
    if _by(provider) == EAGER:
        forward, backward = _rms_eager(n, dtype, rows, cols)
        return [added, *forward], [*backward, added, added]
    if provider == "liger_rms_norm":
        return (
            [added, matrix("rms_norm", dtype, rows, cols)],
            [matrix("rms_norm_backward", dtype, rows, cols), added, added, added],
        )
    return [stream("triton_per_norm", dtype, n, 2 * e, 2 * e)], [
        matrix("rms_norm_backward", dtype, rows, cols)
    ]


def megatron_rms_norm(s: Sizes, dtype: str, provider: str) -> Passes | None:
    rows, cols = s["S"] * s["B"], s["H"]
    if provider == "liger":
        return [matrix("rms_norm", dtype, rows, cols)], [matrix("rms_norm_backward", dtype, rows, cols)]
    return (
        [matrix("layer_norm", dtype, rows, cols)],
        [
            matrix("layer_norm_backward", dtype, rows, cols),
            matrix("layer_norm_weights", dtype, rows, cols),
            accumulate(dtype, rows * cols),
        ],
    )


def relu_squared(s: Sizes, dtype: str, provider: str) -> Passes | None:
    n, e = s["M"] * s["N"], dtype_bytes(dtype)
    if _by(provider) == EAGER:
        one = stream("relu", dtype, n, e, e)
        return [one, one], [
            stream("mul", dtype, n, e, e),
            stream("mul", dtype, n, 2 * e, e),
            stream("threshold_backward", dtype, n, 2 * e, e),
        ]
    return [stream("triton_poi", dtype, n, e, e)], [stream("triton_poi", dtype, n, 2 * e, e)]


def megatron_swiglu(s: Sizes, dtype: str, provider: str) -> Passes | None:
    """The two halves lie in one tensor; ``ffn_local`` is the width of each."""
    n, e = s["S"] * s["B"] * s["ffn_local"], dtype_bytes(dtype)
    if provider == "torch":
        silu = stream("silu", dtype, n, e, e, indexed=True)
        mul = stream("mul", dtype, n, 2 * e, e, indexed=True)
        join = Kernel.of("concat", dtype, read_bytes=2 * e * n, write_bytes=2 * e * n, inputs=2)
        back = stream("silu_backward", dtype, n, 2 * e, e, indexed=True)
        return [silu, mul], [mul, stream("mul", dtype, n, 2 * e, e), back, join]
    if provider.startswith("liger"):
        return ([stream("triton_poi", dtype, n, 2 * e, e)], [stream("triton_poi", dtype, n, 3 * e, 2 * e)])
    return None


def _gated(s: Sizes, dtype: str, provider: str, tokens: float, act: str) -> Passes:
    hidden, ffn, e = s["hidden_size"], s["intermediate_size"], dtype_bytes(dtype)
    n = tokens * ffn

    def gemm(m: float, n: float, k: float, role: str = "linear") -> Kernel:
        return Kernel.of("gemm", dtype, operator=role, m=m, n=n, k=k)

    up, down = gemm(tokens, ffn, hidden), gemm(tokens, hidden, ffn)
    grads = [
        gemm(tokens, ffn, hidden, "dgrad"),
        gemm(hidden, ffn, tokens, "wgrad"),
        *[gemm(tokens, hidden, ffn, "dgrad"), gemm(ffn, hidden, tokens, "wgrad")] * 2,
    ]
    middle = [stream(act, dtype, n, e, e), stream("mul", dtype, n, 2 * e, e)]
    back = [stream("mul", dtype, n, 2 * e, e)] * 2 + [stream(f"{act}_backward", dtype, n, 2 * e, e)]
    if _by(provider) == FUSED:
        middle = [stream("triton_poi", dtype, n, 2 * e, e)]
        back = [stream("triton_poi", dtype, n, 3 * e, 2 * e)]
    return [up, up, *middle, down], [*grads, *back, accumulate(dtype, tokens * hidden)]


def geglu(s: Sizes, dtype: str, provider: str) -> Passes | None:
    return _gated(s, dtype, provider, s["bsz"] * s["T"], "gelu")


def swiglu(s: Sizes, dtype: str, provider: str) -> Passes | None:
    return _gated(s, dtype, provider, s["B"] * s["T"], "silu")


def embedding(s: Sizes, dtype: str, provider: str) -> Passes | None:
    lookups, dim, table = s["B"] * s["T"], s["D"], s["V"]
    e = dtype_bytes(dtype)
    pick = Kernel.of("gather", dtype, operator="embedding", rows=lookups, cols=dim, table_rows=table)
    grads = [
        Kernel.of("sort", "int64", elements=lookups),
        Kernel.of(
            "scatter", dtype, operator="embedding_dense_backward", rows=lookups, cols=dim, table_rows=table
        ),
    ]
    if provider != "huggingface":
        pick = stream("triton_poi", dtype, lookups * dim, e, e)
        add = "atomic_add" if provider == "liger" else "index_put_direct"
        grads = [
            Kernel.of("fill", dtype, bytes=e * table * dim),
            Kernel.of("scatter", dtype, operator=add, rows=lookups, cols=dim, table_rows=1),
        ]
    return [pick], [*grads, accumulate(dtype, table * dim)]


def tvd(s: Sizes, _: str, provider: str) -> Passes | None:
    """Total variation distance of two fp32 distributions; its backward goes on through a softmax, whose
    gradient and result are read twice."""
    n = s["B"] * s["T"] * s["V"]
    softmax = stream("softmax_backward", "fp32", n, 16, 4)
    if _by(provider) == EAGER:
        return (
            [
                stream("sub", "fp32", n, 8, 4),
                stream("abs", "fp32", n, 4, 4),
                stream("mul", "fp32", n, 4, 4),
                Kernel.of("reduce", "fp32", operator="sum", rows=1, cols=n),
            ],
            [
                stream("div", "fp32", n, 0, 4, indexed=True),
                stream("mul", "fp32", n, 4, 4),
                stream("sgn", "fp32", n, 4, 4),
                stream("mul", "fp32", n, 8, 4),
                softmax,
                accumulate("fp32", n),
            ],
        )
    return (
        [stream("triton_poi", "fp32", n, 8, 4)],
        [stream("mul", "fp32", n, 4, 4), softmax, accumulate("fp32", n)],
    )


def _rope_sizes(s: Sizes) -> tuple[float, float]:
    heads, size = s["num_q_heads"] + s["num_kv_heads"], s.get("hidden_size", s.get("H", 0.0))
    return s.get("seq_len", s.get("T", 0.0)) * heads * size / s["num_q_heads"], size / s["num_q_heads"]


def rope(s: Sizes, dtype: str, provider: str) -> Passes | None:
    """Queries and keys; eager: negated halves joined, two products with tables of angles, a sum."""
    n, head = _rope_sizes(s)
    e = dtype_bytes(dtype)
    if _by(provider) == EAGER:
        join = Kernel.of("concat", dtype, read_bytes=e * n, write_bytes=e * n, inputs=2)
        turned = [stream("neg", dtype, n / 2, e, e, indexed=True), join]
        times = stream("mul", dtype, n, e, e, indexed=True)
        added = stream("add", dtype, n, 2 * e, e, indexed=True)
        forward = [*turned, times, times, added]
        backward = [
            times,
            times,
            stream("neg", dtype, n / 2, e, e, indexed=True),
            *[Kernel.of("fill", dtype, bytes=e * n), stream("copy", dtype, n / 2, e, e, indexed=True)] * 2,
            added,
            added,
        ]
        return forward, backward
    one = matrix("rotary", dtype, n / head, head)
    return [one], [one]


def llama4_rope(s: Sizes, dtype: str, provider: str) -> Passes | None:
    """Eager: pairs as complex numbers in fp32, one product, and back."""
    n, head = _rope_sizes(s)
    e = dtype_bytes(dtype)
    if _by(provider) == EAGER:
        turn = [stream("cast", dtype, n, e, 4), stream("mul", "fp32", n, 4, 4, indexed=True),
                stream("cast", "fp32", n, 4, e)]  # fmt: skip
        return turn, turn
    one = matrix("rotary", dtype, n / head, head)
    return [one], [one]


def fused_linear_cross_entropy(s: Sizes, dtype: str, provider: str) -> Passes | None:
    """A head and its loss; fused: in chunks, with the gradients made by the forward."""
    rows, hidden, vocab, e = s["BT"], s["H"], s["V"], dtype_bytes(dtype)
    n = rows * vocab
    products = [
        Kernel.of("gemm", dtype, operator="linear", m=rows, n=vocab, k=hidden),
        Kernel.of("gemm", dtype, operator="dgrad", m=rows, n=hidden, k=vocab),
        Kernel.of("gemm", dtype, operator="wgrad", m=vocab, n=hidden, k=rows),
    ]
    if _by(provider) == EAGER:
        forward = [products[0], matrix("softmax", dtype, rows, vocab, "log_softmax"),
                   matrix("nll_loss", dtype, rows, vocab)]  # fmt: skip
        backward = [matrix("nll_loss_backward", dtype, rows, vocab),
                    matrix("softmax_backward", dtype, rows, vocab, "_log_softmax_backward_data"),
                    *products[1:]]  # fmt: skip
        return forward, backward
    return [*products, stream("loss", dtype, n, 2 * e, e)], [stream("copy", dtype, vocab * hidden, e, e)]


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
