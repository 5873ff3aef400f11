"""Megatron's operators as kernels: which kernels a row of ``op mp b l h dim`` runs, forward and backward.

One row is one operator on one shape; its time is the sum of its kernels' times. Sizes are per GPU:
``mp`` is the tensor-parallel degree, ``b`` the micro batch, ``l`` the sequence, ``h`` the heads of the
whole model and ``dim`` its hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from stepsight.errors import InputError
from stepsight.estimate import FloatArray, IntArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.roofline import speed_of_light_us
from stepsight.prediction.kernel_times import Table

FILE = "megatron_ops_fp16.parquet"
PASSES = ("forward", "backward")
OPERATOR_COLUMNS = frozenset({"gpu", "op", "mp", "b", "l", "h", "dim"})
VOCABULARY = 50_257
"""GPT-2's, padded to a multiple of 128 for every rank."""
DTYPE = "fp16"


@dataclass(frozen=True, slots=True)
class Operator:
    """Rows of one operator on one GPU in one direction, and the kernels that each runs."""

    gpu: str
    op: str
    direction: str
    kernels: tuple[Batch, ...]
    positions: IntArray

    @property
    def label(self) -> str:
        return f"{self.op} {self.direction}"


def edition(table: Table) -> str:
    """Which rows these are, by a checksum of their times."""
    times = np.concatenate([np.asarray(table[f"{key}_us"], dtype=np.float64) for key in PASSES])
    return f"fp16 operators of Megatron, edition {crc32(np.ascontiguousarray(times).tobytes()):08x}"


def possible(operator: Operator, time_us: FloatArray, spec: GpuSpec) -> npt.NDArray[np.bool_]:
    """Whether each row is no faster than the GPU can be: its bytes at full bandwidth, its FLOPs at peak.

    Rows that are lack a kernel: on GH200 large fills of a mask end at 1.8 ms whatever their size.
    """
    light = np.sum([speed_of_light_us(kernel, spec) for kernel in operator.kernels], axis=0)
    return np.asarray(np.isfinite(time_us) & (time_us >= light))


Sizes = Mapping[str, FloatArray]
Kernels = list[tuple[str, str, dict[str, FloatArray]]]
"""Family, name and sizes of each kernel of an operator."""


def operators(table: Table, where: str = "table") -> Iterator[Operator]:
    """The rows of a table by GPU, operator and direction; operators that are not known are left out."""
    missing = sorted(OPERATOR_COLUMNS - set(table))
    if missing:
        raise InputError(where, f"no column {', '.join(missing)}", "see docs/kernels.md for the layout")
    gpus, ops = (np.array([str(v) for v in table[key]]) for key in ("gpu", "op"))
    numbers = {
        key: np.nan_to_num(np.asarray(table[key], dtype=np.float64), nan=1.0)
        for key in ("mp", "b", "l", "h", "dim")
    }
    for gpu in dict.fromkeys(gpus.tolist()):
        for op, rule in RULES.items():
            at = np.nonzero((gpus == gpu) & (ops == op))[0]
            if not len(at):
                continue
            sizes = {key: column[at] for key, column in numbers.items()}
            for direction, kernels in zip(PASSES, rule(sizes), strict=True):
                seen = UNSEEN.get((gpu, op, direction), ())
                parts = tuple(
                    Batch.of(family, DTYPE, dims, name)
                    for family, name, dims in kernels
                    if family not in seen
                )
                if parts:
                    yield Operator(gpu, op, direction, parts, at)


Rule = Callable[[Sizes], tuple[Kernels, Kernels]]


def _linear(
    inputs: Callable[[Sizes], FloatArray], outputs: Callable[[Sizes], FloatArray], *, bias: bool
) -> Rule:
    def rule(s: Sizes) -> tuple[Kernels, Kernels]:
        m, k, n = s["b"] * s["l"], inputs(s), outputs(s)
        backward: Kernels = [
            ("gemm", "dgrad", {"m": m, "n": k, "k": n}),
            ("gemm", "wgrad", {"m": n, "n": k, "k": m}),
        ]
        if bias:
            backward.append(("reduce", "sum", {"rows": n, "cols": m}))
        return [("gemm", "linear", {"m": m, "n": n, "k": k})], backward

    return rule


def _vocabulary(s: Sizes) -> FloatArray:
    return np.asarray(np.ceil(VOCABULARY / (128 * s["mp"])) * 128)


def _products(s: Sizes) -> tuple[FloatArray, FloatArray, FloatArray]:
    return s["b"] * s["h"] / s["mp"], s["l"], s["dim"] / s["h"]


def _scores(s: Sizes) -> tuple[Kernels, Kernels]:
    """Queries times keys: (l × head) · (head × l)."""
    batch, length, head = _products(s)
    return (
        [("gemm", "baddbmm", {"batch": batch, "m": length, "n": length, "k": head})],
        [
            ("gemm", "bmm_dgrad", {"batch": batch, "m": length, "n": head, "k": length}),
            ("gemm", "bmm_wgrad", {"batch": batch, "m": length, "n": head, "k": length}),
        ],
    )


def _context(s: Sizes) -> tuple[Kernels, Kernels]:
    """Probabilities times values: (l × l) · (l × head)."""
    batch, length, head = _products(s)
    return (
        [("gemm", "bmm", {"batch": batch, "m": length, "n": head, "k": length})],
        [
            ("gemm", "bmm_dgrad", {"batch": batch, "m": length, "n": length, "k": head}),
            ("gemm", "bmm_wgrad", {"batch": batch, "m": head, "n": length, "k": length}),
        ],
    )


def _flash(s: Sizes) -> tuple[Kernels, Kernels]:
    batch, length, head = _products(s)
    dims = {"batch": s["b"], "heads": batch / s["b"], "q": length, "head_dim": head}
    return [("attention", "flash2", dims)], [("attention_backward", "flash2", dims)]


def _matrix(forward: str, backward: str, name: str, shape: Callable[[Sizes], dict[str, FloatArray]]) -> Rule:
    def rule(s: Sizes) -> tuple[Kernels, Kernels]:
        return [(forward, name, shape(s))], [(backward, name, shape(s))]

    return rule


def _tokens(s: Sizes) -> dict[str, FloatArray]:
    return {"rows": s["b"] * s["l"], "cols": s["dim"]}


def _attended(s: Sizes) -> dict[str, FloatArray]:
    return {"rows": s["b"] * s["h"] / s["mp"] * s["l"], "cols": s["l"]}


def _rotated(s: Sizes) -> dict[str, FloatArray]:
    return {"rows": s["b"] * s["l"] * s["h"] / s["mp"], "cols": s["dim"] / s["h"]}


def _gelu(s: Sizes) -> tuple[Kernels, Kernels]:
    elements = s["b"] * s["l"] * 4 * s["dim"] / s["mp"]
    return (
        [("elementwise", "gelu", _streamed(elements, 1))],
        [("elementwise", "gelu_backward", _streamed(elements, 2))],
    )


def _residual(s: Sizes) -> tuple[Kernels, Kernels]:
    """The gradient passes through; what the file states for it is another sum of the same size."""
    add: Kernels = [("elementwise", "add", _streamed(s["b"] * s["l"] * s["dim"], 2))]
    return add, add


def _streamed(elements: FloatArray, reads: int) -> dict[str, FloatArray]:
    return {"elements": elements, "read_bytes": reads * 2 * elements, "write_bytes": 2 * elements}


def _layer_norm(s: Sizes) -> tuple[Kernels, Kernels]:
    dims = _tokens(s)
    return (
        [("layer_norm", "layer_norm", dims)],
        [("layer_norm_backward", "layer_norm", dims), ("layer_norm_weights", "layer_norm", dims)],
    )


def _cross_entropy(s: Sizes) -> tuple[Kernels, Kernels]:
    dims = {"rows": s["b"] * s["l"], "cols": _vocabulary(s)}
    return [("cross_entropy", "eager", dims)], [("cross_entropy_backward", "eager", dims)]


UNSEEN: Mapping[tuple[str, str, str], tuple[str, ...]] = {
    ("GH200-96G", "layernorm", "backward"): ("layer_norm_weights",),
    ("GH200-96G", "flash_atten", "backward"): ("attention_backward",),
}
"""Kernels of an operator that a GPU's times do not hold. GH200's layer-norm backward takes less than its
bytes at full bandwidth with the gradients of the weights, and as long as A100's share of bandwidth says
without them. GH200's FlashAttention backward would run at up to 14 PFLOP/s: the profiler's sum has the
kernels before and after it only."""

RULES: Mapping[str, Rule] = {
    "linear1": _linear(lambda s: s["dim"], lambda s: 3 * s["dim"] / s["mp"], bias=True),
    "linear2": _linear(lambda s: s["dim"] / s["mp"], lambda s: s["dim"], bias=False),
    "linear3": _linear(lambda s: s["dim"], lambda s: 4 * s["dim"] / s["mp"], bias=False),
    "linear4": _linear(lambda s: 4 * s["dim"] / s["mp"], lambda s: s["dim"], bias=False),
    "linear_final": _linear(lambda s: s["dim"], _vocabulary, bias=False),
    "baddbmm": _scores,
    "bmm": _context,
    "flash_atten": _flash,
    "softmax": _matrix("softmax", "softmax_backward", "softmax", _attended),
    "ScaledUpperTriangMaskedSoftmax": _matrix("softmax", "softmax_backward", "causal", _attended),
    "fillmask": _matrix("masked_fill", "masked_fill_backward", "eager", _attended),
    "gelu": _gelu,
    "layernorm": _layer_norm,
    "RMSlayernorm": _matrix("rms_norm", "rms_norm_backward", "eager", _tokens),
    "res_add": _residual,
    "RoPE": _matrix("rotary", "rotary_backward", "eager", _rotated),
    "parallel_cross_entropy_128": _cross_entropy,
}
"""What each operator of the table runs. ``embedding`` and the optimizers are left out: on GH200 the
former's time does not grow with its size, and the latter's is a range on the host."""
