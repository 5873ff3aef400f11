"""Operators of Megatron layers on seven GPUs, fp16, forward and backward.

No row is fitted by itself, but constants of vector kernels were read off medians over these rows and others.

transformer_ops.parquet states an operator's activations in MB, of which elements follow. A host timer with a
synchronisation took the times, so only kernels well above the host's own time are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.datasets.kernel_tables.files import read_table
from lab.datasets.kernel_tables.rows import Table
from lab.fit.kernels.learn import NORMAL_90
from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import find_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.models import KernelModels
from stepsight.score import FIT, Score

TOPIC = "kernels"
FILE = "transformer_ops.parquet"
GPUS = {
    "V100-16": "V100-SXM2-16G", "V100-32G": "V100-SXM2-32G", "A100-40": "A100-SXM4-40G",
    "GH-96": "GH200-96G", "RTX-3090": "RTX-3090", "Titan-RTX": "TITAN-RTX", "RTX-2080": "RTX-2080Ti",
}  # fmt: skip
MEGABYTE = 2.0**20
SEQUENCE = 2048.0
"""Of the GPT models; T5's two lengths are not in the table."""
SYNC_US = 12.0
"""What the synchronisation adds to a reading."""
ABOVE_US = 150.0
"""Kernels shorter than this may be hidden behind the host's own time (80 µs and more)."""
LEAST_ROWS = 10
OFF = 0.20

Kernels = list[tuple[str, str, dict[str, FloatArray]]]


def _softmax(activations: FloatArray) -> tuple[Kernels, Kernels]:
    rows = {"rows": activations / 2 / SEQUENCE, "cols": np.full(len(activations), SEQUENCE)}
    return [("softmax", "causal", rows)], [("softmax_backward", "causal", rows)]


def _dropout(activations: FloatArray) -> tuple[Kernels, Kernels]:
    """Kept are the output and a mask of one byte an element."""
    n = activations / 3
    return [("dropout", "dropout", {"elements": n})], [_stream("mul", n, 3, 2)]


def _gelu(activations: FloatArray) -> tuple[Kernels, Kernels]:
    """With the bias fused; its gradient is a sum of its own."""
    n = activations / 2
    columns = np.full(len(n), 4096.0)
    bias = ("reduce", "sum", {"rows": columns, "cols": n / columns})
    return [_stream("gelu", n, 2, 2)], [_stream("gelu_backward", n, 4, 2), bias]


def _stream(name: str, n: FloatArray, reads: float, writes: float) -> tuple[str, str, dict[str, FloatArray]]:
    return "elementwise", name, {"elements": n, "read_bytes": reads * n, "write_bytes": writes * n}


OPERATORS: Mapping[str, Callable[[FloatArray], tuple[Kernels, Kernels]]] = {
    "enc-attention-softmax": _softmax,
    "enc-attention-dropout": _dropout,
    "enc-MLP-gelu": _gelu,
}


def layer_scores(data: Path) -> list[Score]:
    """One line per operator, direction and GPU, judged by the median."""
    path = data / "kernels" / FILE
    return list(_scores(read_table(path))) if path.is_file() else []


def _scores(table: Table) -> Iterator[Score]:
    text = {key: np.array([str(v) for v in table[key]]) for key in ("gpu", "precision", "model", "op_name")}
    numbers = {
        key: np.asarray(table[key], dtype=np.float64) for key in ("activations", "forward_us", "backward_us")
    }
    gpt = (text["precision"] == "fp16") & ~np.char.startswith(text["model"], "t5")
    for gpu, name in GPUS.items():
        entry = find_gpu(name)
        if entry is None:
            continue
        models = KernelModels.for_gpu(entry.gpu)
        for op, rule in OPERATORS.items():
            at = np.nonzero(gpt & (text["gpu"] == gpu) & (text["op_name"] == op))[0]
            if not len(at):
                continue
            passes = zip(("forward", "backward"), rule(numbers["activations"][at] * MEGABYTE), strict=True)
            for direction, kernels in passes:
                predicted, spread = timed(models, "fp16", kernels)
                measured = numbers[f"{direction}_us"][at] - SYNC_US
                kind = f"layers fp16: {op}"
                line = layer_score(
                    f"{kind} {direction} {name}", predicted, measured, spread, kind=kind, exposure=FIT
                )
                if line is not None:
                    yield line


def timed(models: KernelModels, dtype: str, kernels: Kernels) -> tuple[FloatArray, FloatArray]:
    """The sum of an operator's kernels and its spread; their errors go together."""
    answers = [models.estimate_batch(Batch.of(f, dtype, d, n)) for f, n, d in kernels]
    total = np.sum([answer.time_us for answer in answers], axis=0)
    return total, np.sum([answer.time_us * answer.spread for answer in answers], axis=0) / total


def layer_score(
    name: str, predicted: FloatArray, measured: FloatArray, spread: FloatArray, *, kind: str, exposure: str
) -> Score | None:
    """The line of operators above `ABOVE_US`, judged by the median; None for fewer than ten."""
    long = predicted > ABOVE_US
    if long.sum() < LEAST_ROWS:
        return None
    predicted, measured, spread = predicted[long], measured[long], spread[long]
    middle = float(np.median(measured / predicted))
    inside = np.abs(np.log(np.maximum(measured, 1e-3) / predicted)) <= NORMAL_90 * spread
    line = Score.of(
        TOPIC, name, predicted, measured, f"predicted above {ABOVE_US:.0f} µs", exposure=exposure, kind=kind,
        note=f"median of measured over predicted {middle:.2f}; {inside.mean():.0%} inside the 90 % interval",
    )  # fmt: skip
    return replace(line, target=f"median off by ≤ {OFF:.0%}", met=1 - OFF <= middle <= 1 + OFF)
