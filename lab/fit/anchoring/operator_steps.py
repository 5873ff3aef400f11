"""The same model's operators on several GPUs: steps of nlp_ops_fp32.parquet as jobs that a trace could hold.

A step is what one GPU ran of one model, mode, length and batch. Its operators are read as a profiler trace
would show them: kernels with their sizes and the time the operator took. An operator that no rule describes
is known by its traffic alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from math import prod
from pathlib import Path

import numpy as np

from lab.datasets.kernel_tables.eager import ADDED_US, USUAL_ADDED_US, known_kernels
from lab.datasets.kernel_tables.files import read_table
from lab.fit.kernels.boards import FILE, SLOW_RUNS
from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import find_gpu
from stepsight.program.job import HostTimes, Job, Kernel, Op, RankProgram, Sizing, world
from stepsight.program.observation import Observation, ObservedJob

LEAST_US = 20.0
"""Shorter rows without known kernels are the host's: sizes, views, items."""
LEAST_SHARE = 0.2
"""A row is at least so much kernel, however long its host took."""
WIDTH = 4
_NO_HOST = HostTimes(0.0, 0.0, 0.0, 0.0, 0.0)
Shape = list[int]


@dataclass(frozen=True, slots=True)
class Part:
    """One direction of one operator: its kernels and the time of all of them together.

    ``key`` is its place in the workload, the same on every GPU.
    """

    key: tuple[int, int]
    name: str
    kernels: tuple[Kernel, ...]
    time_us: float


@dataclass(frozen=True)
class OperatorStep:
    """All operators that one GPU ran of one workload; ``name`` is the workload's."""

    name: str
    gpu: str
    parts: tuple[Part, ...]

    @property
    def measured_us(self) -> float:
        return sum(part.time_us for part in self.parts)

    @cached_property
    def kernels(self) -> list[Kernel]:
        return [kernel for part in self.parts for kernel in part.kernels]

    @cached_property
    def owner(self) -> np.typing.NDArray[np.int64]:
        """The part that each kernel belongs to."""
        return np.repeat(np.arange(len(self.parts)), [len(part.kernels) for part in self.parts])

    @property
    def part_us(self) -> FloatArray:
        return np.array([part.time_us for part in self.parts])

    def job(self, model_us: FloatArray) -> ObservedJob:
        """The step as a traced job: each kernel took its share, by the model, of its operator's time."""
        total = np.bincount(self.owner, model_us, len(self.parts))
        ops, seen, at = [], [], 0
        for i, part in enumerate(self.parts):
            shares = model_us[at : at + len(part.kernels)] / max(total[i], 1e-9)
            at += len(part.kernels)
            seen.append(tuple(Observation(float(part.time_us * share)) for share in shares))
            ops.append(Op(part.name, tuple(part.kernels), overhead_us=_NO_HOST))
        return ObservedJob(Job((RankProgram(tuple(ops), "rank 0"),), (0,), world(1)), (tuple(seen),))

    def only(self, keys: set[tuple[int, int]]) -> OperatorStep:
        """The parts at some places."""
        return OperatorStep(self.name, self.gpu, tuple(p for p in self.parts if p.key in keys))


def ordered_pairs(steps: list[OperatorStep]) -> Iterator[tuple[OperatorStep, OperatorStep]]:
    """Every ordered pair of GPUs that ran the same workload, each with the parts that both show."""
    for a, b in permutations(steps, 2):
        if a.name == b.name and a.gpu != b.gpu:
            common = {p.key for p in a.parts} & {p.key for p in b.parts}
            yield a.only(common), b.only(common)


def operator_steps(data: Path) -> list[OperatorStep]:
    """Every step of the table whose GPU the catalogue has."""
    path = data / "kernels" / FILE
    if not path.is_file():
        return []
    table = read_table(path)
    keys = (
        "device", "model", "mode", "seqlen", "batch", "option", "op", "target", "input_shapes",
        "output_shape", "forward_us", "backward_us", "accumulate_us",
    )  # fmt: skip
    found: dict[tuple[str, str], list[Part]] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for row in zip(*(table[key] for key in keys), strict=True):
        device, model, mode, length, batch, option = (str(value) for value in row[:6])
        entry = find_gpu(device)
        if entry is None or (device, model) in SLOW_RUNS:
            continue
        name = f"{model} {mode} {length}×{batch}" + (f" {option}" if option else "")
        added = ADDED_US.get(entry.gpu.architecture, USUAL_ADDED_US)
        step = name, entry.gpu.name
        times = tuple(float(value or 0.0) for value in row[10:])
        found.setdefault(step, []).extend(
            _parts(seen[step], [str(value) for value in row[6:10]], times, added)
        )
        seen[step] += 1
    return [OperatorStep(name, gpu, tuple(parts)) for (name, gpu), parts in found.items() if parts]


def _parts(row: int, texts: list[str], times_us: tuple[float, ...], added_us: float) -> Iterator[Part]:
    """One row: op, target and shapes as texts, and its times forward, backward and of the accumulation."""
    op, target, inputs, output = texts
    shapes, out = _shapes(inputs), _sizes(output)
    if not out or prod(out) <= 1:
        return
    ahead, back, weights = _kernels(op, target, shapes, out)
    ways = (("", ahead), (", backward", back), (", accumulate", weights))
    for way, ((what, kernels), time_us) in enumerate(zip(ways, times_us, strict=True)):
        known = any(k.sizing is Sizing.STATED for k in kernels)
        if kernels and time_us > (added_us if known else max(LEAST_US, added_us)):
            yield Part(
                (row, way), target + what, tuple(kernels), max(time_us - added_us, LEAST_SHARE * time_us)
            )


def _kernels(
    op: str, target: str, inputs: list[Shape], out: Shape
) -> tuple[list[Kernel], list[Kernel], list[Kernel]]:
    """Kernels of the forward, the backward and the accumulation of the weights' gradients."""
    last = target.rsplit(".", 1)[-1]
    product = _product(op, target, inputs, out)
    if product is not None:
        batch, m, n, k = product
        name = "linear" if batch == 1 else "bmm"
        back = [_gemm(name, batch, m, k, n), _gemm(name, batch, k, n, m)]
        weights = [_add(float(k * n)), _add(float(n))] if batch == 1 else []
        return [_gemm(name, batch, m, n, k)], back, weights
    if "dropout" in last or last == "drop":
        size = float(prod(out))
        back = [
            Kernel.of("elementwise", operator="mul", elements=size, read_bytes=5 * size, write_bytes=4 * size)
        ]
        return [Kernel.of("dropout", elements=size)], back, []
    if "embed" in last or last in ("wte", "wpe"):
        rows, cols = float(prod(out[:-1])), float(out[-1])
        table = _unsized("embedding", rows * cols, 1)
        return [Kernel.of("gather", rows=rows, cols=cols)], [table], [table]
    if last in ("contiguous", "reshape"):
        return [Kernel.of("transpose", elements=float(prod(out)))], [], []
    known = known_kernels(op, target, inputs, out)
    if known is not None:
        _, ahead, back = known
        cols = float(out[-1])
        return ahead, back, [_add(cols), _add(cols)]
    size = float(prod(out))
    reads = sum(prod(shape) for shape in inputs if prod(shape) > 1) / size
    return [_unsized(last, size, reads)], [_unsized(last, size, reads + 1)], []


def _gemm(name: str, batch: int, m: int, n: int, k: int) -> Kernel:
    return Kernel.of("gemm", operator=name, batch=batch, m=m, n=n, k=k)


def _add(size: float) -> Kernel:
    return Kernel.of("elementwise", operator="add", elements=size, read_bytes=8 * size, write_bytes=4 * size)


def _unsized(name: str, size: float, reads: float) -> Kernel:
    """An operator known by its traffic alone, as a trace shows one whose rule nobody wrote."""
    return Kernel.of(
        "elementwise", operator=name, sizing=Sizing.UNKNOWN, elements=size, read_bytes=WIDTH * reads * size,
        write_bytes=WIDTH * size,
    )  # fmt: skip


def _product(op: str, target: str, inputs: list[Shape], out: Shape) -> tuple[int, int, int, int] | None:
    """batch, m, n, k of a matrix product; None where the operator is none."""
    if target == "addmm" and len(inputs) == 3:
        return 1, inputs[1][0], inputs[2][1], inputs[1][1]
    if target in ("matmul", "bmm") and len(inputs) == 2:
        left, right = inputs
        return int(prod(left[:-2])), left[-2], right[-1], left[-1]
    words = ("dense", "query", "key", "value", "lm_head", "proj", "fc1", "fc2", "decoder", "relationship")
    other = ("orm", "ropout", "embed", "activation", "_fn")
    last = target.rsplit(".", 1)[-1]
    linear = op == "call_module" and any(w in last for w in words) and not any(w in last for w in other)
    if linear and inputs and len(inputs[0]) >= 2 and len(out) == len(inputs[0]):
        return 1, int(prod(inputs[0][:-1])), out[-1], inputs[0][-1]
    return None


def _shapes(text: str) -> list[Shape]:
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return [s for s in found if isinstance(s, list)] if isinstance(found, list) else []


def _sizes(text: str) -> Shape:
    try:
        found = json.loads(text.replace("(", "[").replace(",)", "]").replace(")", "]"))
    except ValueError:
        return []
    return [int(size) for size in found if isinstance(size, int)] if isinstance(found, list) else []
