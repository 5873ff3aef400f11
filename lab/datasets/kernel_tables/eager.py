"""Operators of eager models as kernels: which kernels a row of ``op target input_shapes output_shape`` runs.

The layout of nlp_ops_fp32.parquet: one row per node of a traced model, with times of its forward and its
backward between CUDA events. Softmax, norms and element-wise functions; products are read elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import find_gpu
from stepsight.kernels.models import KernelModels
from stepsight.prediction.kernel_times import Table
from stepsight.program.job import Kernel

FILE = "nlp_ops_fp32.parquet"
ADDED_US = {"hopper": 6.0, "cdna": 13.0, "cdna2": 13.0}
USUAL_ADDED_US = 10.0
"""What passes on each generation's host between the first event and the kernel's start: the intercepts of
element-wise operators over their bytes."""
NORM_STEPS = {"nvidia": 2.5, "amd": 1.0}
"""Times that, for a layer norm: it allocates three results before its launch (small ones read 12 µs on H100,
25 to 30 µs on V100, A100 and L4). Boards with a table of norms have it in there."""
DTYPE, WIDTH = "fp32", 4

SOFTMAX, NORM, POINTWISE = "softmax", "norm", "element-wise"


@dataclass(frozen=True, slots=True)
class EagerRow:
    """One operator on one GPU: its kind, its kernels each way, its times in µs (0: none recorded)."""

    gpu: str
    device: str
    model: str
    kind: str
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    forward_us: float
    backward_us: float


def eager_rows(table: Table) -> Iterator[EagerRow]:
    """The rows whose kernels are known; nodes that run none (views, sizes) and products are left out."""
    keys = ("device", "model", "op", "target", "input_shapes", "output_shape", "forward_us", "backward_us")
    for device, model, op, target, inputs, output, forward, backward in zip(
        *(table[key] for key in keys), strict=True
    ):
        entry = find_gpu(str(device))
        shapes = shapes_of(str(inputs))
        out = shapes_of(str(output).replace("(", "[").replace(",)", "]").replace(")", "]"))
        found = None if entry is None or not out else known_kernels(str(op), str(target), shapes, out)
        if found is not None and entry is not None:
            kind, ahead, back = found
            times = float(forward), float(backward)
            yield EagerRow(
                entry.gpu.name, str(device), str(model), kind, tuple(ahead), tuple(back), *times
            )  # fmt: skip


def read_times(models: KernelModels, rows: list[tuple[Kernel, ...]]) -> tuple[FloatArray, FloatArray]:
    """What the events would read around each row's kernels, and the spread of that."""
    every = [kernel for kernels in rows for kernel in kernels]
    answer = models.estimate(every)
    owner = np.repeat(np.arange(len(rows)), [len(kernels) for kernels in rows])
    total = np.bincount(owner, answer.time_us, len(rows))
    spread = np.bincount(owner, answer.time_us * answer.spread, len(rows)) / np.maximum(total, 1e-9)
    tabled = any((m.family, m.machine.name) == ("layer_norm", models.spec.name) for m in models.shipped)
    norm = 1.0 if tabled else NORM_STEPS.get(models.spec.vendor, 1.0)
    steps = [norm if kernels and kernels[0].family == "layer_norm" else 1.0 for kernels in rows]
    added = ADDED_US.get(models.spec.architecture, USUAL_ADDED_US) * np.array(steps)
    return np.asarray(total + added, dtype=np.float64), np.asarray(spread, dtype=np.float64)


def shapes_of(text: str) -> list[list[int]]:
    """The shapes, or the sizes of one, that a text lists; none where it is no list."""
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def known_kernels(
    op: str, target: str, inputs: list[list[int]], output: list[int] | list[list[int]]
) -> tuple[str, list[Kernel], list[Kernel]] | None:
    """The kind and the kernels each way of one operator; None of those without kernels and of products."""
    out = [int(size) for size in output if not isinstance(size, list)]
    if not out or prod(out) <= 1:
        return None
    if op == "call_module":
        return _module(target, out)
    if target == "softmax":
        return SOFTMAX, [_rows("softmax", out)], [_rows("softmax_backward", out)]
    return _pointwise(target, inputs, out)


def _module(target: str, out: list[int]) -> tuple[str, list[Kernel], list[Kernel]] | None:
    last = target.rsplit(".", 1)[-1]
    if last.startswith("ln_") or "norm" in last.lower():
        backward = [_rows("layer_norm_backward", out), _rows("layer_norm_weights", out)]
        return NORM, [_rows("layer_norm", out)], backward
    if "activation" in last or last == "act":
        return POINTWISE, [_stream("relu", out, 1)], [_stream("threshold_backward", out, 2)]
    return None


def _rows(family: str, out: list[int]) -> Kernel:
    return Kernel.of(family, DTYPE, rows=prod(out[:-1]), cols=out[-1])


def _stream(name: str, out: list[int], reads: float, *, indexed: bool = False) -> Kernel:
    size = prod(out)
    return Kernel.of(
        "elementwise", DTYPE, operator=name, elements=size, read_bytes=WIDTH * reads * size,
        write_bytes=WIDTH * size, indexed=int(indexed),
    )  # fmt: skip


def _pointwise(
    target: str, inputs: list[list[int]], out: list[int]
) -> tuple[str, list[Kernel], list[Kernel]] | None:
    """add, sub, mul, truediv, pow, tanh, gelu, where: gradients as autograd writes them."""
    size = prod(out)
    whole = sum(1 for shape in inputs if prod(shape) == size)
    part = sum(prod(shape) for shape in inputs if 1 < prod(shape) < size)
    reads, broadcast = whole + part / size, part > 0
    if target in ("add", "sub", "mul", "truediv") and whole:
        ahead = [_stream({"truediv": "div"}.get(target, target), out, reads, indexed=broadcast)]
        if target in ("add", "sub") or broadcast:
            return POINTWISE, ahead, []
        if whole > 1:
            return POINTWISE, ahead, [_stream("mul_backward", out, 2), _stream("mul_backward", out, 2)]
        return POINTWISE, ahead, [_stream("mul_backward", out, 1)]
    if target in ("tanh", "gelu"):
        return POINTWISE, [_stream(target, out, 1)], [_stream(f"{target}_backward", out, 2)]
    if target == "pow":
        back = [_stream("pow", out, 1), _stream("mul_backward", out, 1), _stream("mul_backward", out, 2)]
        return POINTWISE, [_stream("pow", out, 1)], back
    return None
