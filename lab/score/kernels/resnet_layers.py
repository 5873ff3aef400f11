"""Layers of wide ResNets in fp32, forward and backward, on V100: convolutions, batch norms, activations.

transformer_ops.parquet states an operator's weights and what it keeps in MB; with the image's size at each
stage, channels follow. Layers split over several ranks (tp above 1) are left out: how is not stated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.datasets.kernel_tables.files import read_table
from lab.datasets.kernel_tables.rows import Table
from lab.score.kernels.layers import FILE, GPUS, MEGABYTE, SYNC_US, Kernels, layer_score, timed
from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import find_gpu
from stepsight.kernels.models import KernelModels
from stepsight.score import CHOSEN, Score

PIXELS = (56, 28, 14, 7)
"""Height and width of the image at each stage of a ResNet on 224×224."""
WIDTH = 4
_BLOCK = re.compile(r"block-(\d)-(\d+)-(conv[123]|bn[123]|relu)")
_KINDS = {"conv1": "conv 1×1", "conv3": "conv 1×1", "conv2": "conv 3×3", "relu": "relu"}


def resnet_scores(data: Path) -> list[Score]:
    """One line per kind of layer, direction and GPU."""
    path = data / "kernels" / FILE
    return list(_scores(read_table(path))) if path.is_file() else []


def _scores(table: Table) -> Iterator[Score]:
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
