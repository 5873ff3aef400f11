"""How much of what a model misses on one GPU it misses on another: the exponents of anchoring.

The same model's operators on several GPUs (nlp_ops_fp32.parquet) are read as jobs that a trace could hold: a
step is what one GPU ran of one model, mode, length and batch; an operator that no rule describes is known by
its traffic alone. Of an operator, x = ln(measured ÷ model) on the first GPU and y the same on the second. The
exponent w that makes w·x the best guess of y, by the least sum of |y − w·x| over the second step's time, is
the weighted median of y ÷ x. Every ordered pair of GPUs counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations
from math import prod
from pathlib import Path

import click
import numpy as np

from lab.datasets.folder import data_folder, read_table
from lab.datasets.kernel_tables.eager import ADDED_US, USUAL_ADDED_US, known_kernels, shapes_of
from lab.fit.constants import store
from lab.fit.kernels.boards import FILE, SLOW_RUNS
from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import find_gpu, load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.prediction.traced.anchoring import PRODUCT, STREAM, UNSIZED, class_of
from stepsight.program.job import HostTimes, Job, Kernel, Op, RankProgram, Sizing, world
from stepsight.program.observation import Observation, ObservedJob

DIGITS = 2
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
    shapes, out = shapes_of(inputs), _sizes(output)
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


def _sizes(text: str) -> Shape:
    found: list[object] = [*shapes_of(text.replace("(", "[").replace(",)", "]").replace(")", "]"))]
    return [size for size in found if isinstance(size, int)]


@dataclass(frozen=True, slots=True)
class PairSample:
    """One workload on two GPUs, operator by operator; times in µs."""

    name: str
    source: str
    target: str
    kinds: tuple[str, ...]
    measured_us: FloatArray
    model_us: FloatArray
    there_us: FloatArray
    model_there_us: FloatArray


@lru_cache(maxsize=32)
def _models(gpu: str) -> KernelModels:
    return KernelModels.for_gpu(load_gpu(gpu))


def model_us(step: OperatorStep, gpu: str, *, unsized: bool = False) -> FloatArray:
    """What the models of a GPU say of every kernel of a step; ``unsized``: known by its traffic alone."""
    kernels = [_by_traffic(k) if unsized else k for k in step.kernels]
    return np.asarray(_models(gpu).estimate(kernels).time_us)


def _by_traffic(kernel: Kernel) -> Kernel:
    if kernel.sizing is Sizing.UNKNOWN:
        return kernel
    d = kernel.dim
    size = {
        "gemm": d("batch") * d("m") * d("n"), "fill": d("bytes") / 4,
    }.get(kernel.family, d("rows") * d("cols") * d("elements"))  # fmt: skip
    return Kernel.of(
        "elementwise", sizing=Sizing.UNKNOWN, elements=size, read_bytes=4 * size, write_bytes=4 * size
    )


def pair_samples(steps: Sequence[OperatorStep]) -> Iterator[PairSample]:
    """Every ordered pair, once with the sizes that are known and once with none."""
    for a, b in ordered_pairs(list(steps)):
        if not a.parts:
            continue
        for unsized in (False, True):
            times = [_by_part(a, model_us(a, gpu, unsized=unsized)) for gpu in (a.gpu, b.gpu)]
            kinds = [UNSIZED if unsized else _kind(part.kernels) for part in a.parts]
            yield PairSample(a.name, a.gpu, b.gpu, tuple(kinds), a.part_us, times[0], b.part_us, times[1])


def _by_part(step: OperatorStep, times: FloatArray) -> FloatArray:
    return np.asarray(np.bincount(step.owner, times, len(step.parts)), dtype=np.float64)


def _kind(kernels: Iterable[Kernel]) -> str:
    kinds = {class_of(kernel) for kernel in kernels}
    return next(kind for kind in (UNSIZED, PRODUCT, STREAM) if kind in kinds)


def fit_exponents(samples: Sequence[PairSample]) -> dict[str, float]:
    """The exponent of each class of kernel."""
    found = {}
    for kind in (PRODUCT, STREAM, UNSIZED):
        x, y, share = _residuals(samples, kind)
        w = float(np.clip(_weighted_median(y / x, share * np.abs(x)), 0.0, 1.0))
        found[kind] = round(w, DIGITS)
    return found


def _residuals(samples: Sequence[PairSample], kind: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    xs, ys, shares = [], [], []
    for s in samples:
        mine = np.array([k == kind for k in s.kinds])
        xs.append(np.log(s.measured_us / s.model_us)[mine])
        ys.append(np.log(s.there_us / s.model_there_us)[mine])
        shares.append((s.there_us / s.there_us.sum())[mine])
    x = np.concatenate(xs)
    return np.where(np.abs(x) < 1e-6, 1e-6, x), np.concatenate(ys), np.concatenate(shares)


def _weighted_median(values: FloatArray, weights: FloatArray) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


@click.command("anchoring")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--dry-run", is_flag=True, help="Print the values and write nothing.")
def command(data: Path | None, dry_run: bool) -> None:
    """Exponents of anchoring by class of kernel, from operators that several GPUs ran."""
    folder = data_folder(data)
    samples = list(pair_samples(operator_steps(folder)))
    if not samples:
        raise InputError(str(folder / "kernels" / FILE), "holds no workload that two GPUs ran")
    values = {f"ANCHOR_{kind.upper()}": value for kind, value in fit_exponents(samples).items()}
    click.echo("\n".join(f"{name} = {value}" for name, value in values.items()))
    if not dry_run:
        click.echo(f"wrote {store('traces', values, runs=len(samples) // 2)}")
