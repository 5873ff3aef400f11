"""Operators of Megatron layers on seven GPUs, fp16, forward and backward.

No row is fitted by itself, but constants of vector kernels were read off medians over these rows and others.

transformer_ops.parquet states an operator's activations in MB, of which elements follow. A host timer with a
synchronisation took the times, so only kernels well above the host's own time are compared.
"""

from __future__ import annotations

import re
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
from stepsight.score import CHOSEN, FIT, Score

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


PIXELS = (56, 28, 14, 7)
"""Height and width of the image at each stage of a ResNet on 224×224."""
WIDTH = 4
_BLOCK = re.compile(r"block-(\d)-(\d+)-(conv[123]|bn[123]|relu)")
_KINDS = {"conv1": "conv 1×1", "conv3": "conv 1×1", "conv2": "conv 3×3", "relu": "relu"}


def resnet_scores(data: Path) -> list[Score]:
    """One line per kind of layer, direction and GPU."""
    path = data / "kernels" / FILE
    return list(_resnet_lines(read_table(path))) if path.is_file() else []


def _resnet_lines(table: Table) -> Iterator[Score]:
    for gpu, name in GPUS.items():
        entry = find_gpu(name)
        rows = _layers(table, gpu)
        if entry is None or not rows:
            continue
        models = KernelModels.for_gpu(entry.gpu)
        for (kind, direction), members in sorted(rows.items()):
            parts = [timed(models, "fp32", kernels) for kernels, _ in members]
            predicted, spread = (np.concatenate(column) for column in zip(*parts, strict=True))
            measured = np.array([time for _, time in members]) - SYNC_US
            line = layer_score(
                f"layers fp32: ResNet {kind} {direction} {name}", predicted, measured, spread,
                kind="layers fp32: ResNet", exposure=CHOSEN,
            )  # fmt: skip
            if line is not None:
                yield line


def _layers(table: Table, gpu: str) -> dict[tuple[str, str], list[tuple[Kernels, float]]]:
    """The layers' kernels and times, by kind and direction; equal layers count once."""
    found: dict[tuple[str, str], list[tuple[Kernels, float]]] = {}
    seen: set[tuple[object, ...]] = set()
    keys = ("gpu", "precision", "op_name", "tp", "micro_batch", "weights", "activations", "forward_us",
            "backward_us")  # fmt: skip
    for own, precision, op, tp, batch, weights, kept, forward, backward in zip(
        *(table[key] for key in keys), strict=True
    ):
        match = _BLOCK.fullmatch(str(op))
        if str(own) != gpu or str(precision) != "fp32" or int(tp) != 1 or match is None:
            continue
        key = (match[1], match[2] == "0", match[3], int(batch), float(weights), float(kept))
        made = None if key in seen else _kernels(match, float(batch), float(weights), float(kept))
        if made is None:
            continue
        seen.add(key)
        kind = _KINDS.get(match[3], "batch norm")
        for direction, kernels, time in zip(("forward", "backward"), made, (forward, backward), strict=True):
            found.setdefault((kind, direction), []).append((kernels, float(time)))
    return found


def _kernels(
    match: re.Match[str], batch: float, weights: float, kept: float
) -> tuple[Kernels, Kernels] | None:
    stage, first, layer = int(match[1]), match[2] == "0", match[3]
    # The first block of a stage halves the image in its 3×3 convolution.
    halves = first and stage > 0
    side = PIXELS[stage] * (2 if halves and layer in ("conv1", "bn1") else 1)
    elements = kept * MEGABYTE / WIDTH
    if layer == "relu":
        return _activation(elements)
    channels = float(np.rint(elements / (batch * side**2) / 32) * 32)  # kept sizes are rounded up to 2 MB
    if channels < 1:
        return None
    if layer.startswith("bn"):
        rows = {"rows": _column(batch * side**2), "cols": _column(channels)}
        return [("batch_norm", "", rows)], [("batch_norm_backward", "", rows)]
    taps = 3 if layer == "conv2" else 1
    c_in = weights * MEGABYTE / WIDTH / (channels * taps**2)
    if c_in < 16:
        return None
    stride = 2 if halves and layer == "conv2" else 1
    dims = {
        "batch": _column(batch), "c_in": _column(round(c_in)), "c_out": _column(channels),
        "h": _column(side * stride), "kh": _column(taps), "padding": _column((taps - 1) // 2),
        "stride": _column(stride),
    }  # fmt: skip
    return [("conv", "", dims)], [("conv_dgrad", "", dims), ("conv_wgrad", "", dims)]


def _activation(elements: float) -> tuple[Kernels, Kernels]:
    """In place; its gradient reads gradient and result."""
    n = _column(elements)
    ahead = {"elements": n, "read_bytes": WIDTH * n, "write_bytes": WIDTH * n}
    back = {"elements": n, "read_bytes": 2 * WIDTH * n, "write_bytes": WIDTH * n}
    return [("elementwise", "relu", ahead)], [("elementwise", "threshold_backward", back)]


def _column(value: float) -> FloatArray:
    return np.array([float(value)])
