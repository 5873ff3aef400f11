"""Kernel times from a machine's own measurements: a smooth efficiency per kind of kernel.

For every variant (a family, and what its name says of the call) the ratio of measured time to
the machine's speed of light is a Gaussian process over the logarithms of the sizes: it passes
near the samples, smooths their noise, and far from all of them returns to the variant's
usual efficiency. Evaluated with numpy alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from stepsight.constants import area
from stepsight.documents import write_whole
from stepsight.errors import InputError
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.inputs import number, read_figures
from stepsight.kernels.columns import batches
from stepsight.kernels.families import FAMILIES, FLAGS
from stepsight.program.job import Kernel

C = area("kernels")

FILE = "measured.json"
AGAIN = "calibrate the platform again"
LARGEST_LOG, LARGEST_WEIGHT = 100.0, 1e4
"""Logarithms of sizes and of measured ÷ speed of light, and weights of a fit, are never larger."""
LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Tried correlation lengths, in natural logarithms of a size."""
NOISES = (0.02, 0.05, 0.1, 0.2)
"""Tried standard deviations of a sample's ln(time)."""
VECTOR_WIDTH = 16
"""fp32 values in the widest registers: products with sizes that are no multiple of it pay for the rest."""
FEWEST = 4
"""Samples below which a variant is answered by its family."""
_BY_TRAFFIC = frozenset({"elementwise", "pool", "optimizer"})


def variant(kernel: Kernel) -> str:
    """Kernels of one variant run the same code: the family, the name, how many tensors are read."""
    name = kernel.operator.rstrip("_") if kernel.operator not in ("bernoulli_", "div_") else kernel.operator
    if kernel.family != "elementwise":
        return f"{kernel.family}/{name}/{kernel.dtype}"
    elements = max(kernel.dim("elements"), 1.0)
    width = kernel.dim("write_bytes", 4 * elements) / elements
    reads = max(1, round(kernel.dim("read_bytes", width * elements) / (width * elements)))
    return f"elementwise/{name}x{reads}/{kernel.dtype}"


def features(kernels: Sequence[Kernel]) -> FloatArray:
    """Logarithms of the sizes that matter, kernels × sizes."""
    family = kernels[0].family
    if family in _BY_TRAFFIC:
        bytes_ = [k.dim("read_bytes", 4 * k.dim("elements")) + k.dim("write_bytes", 0.0) for k in kernels]
        columns = [bytes_]
    else:
        sizes = [name for name in FAMILIES[family].dims if name != "read_bytes" and name not in FLAGS]
        columns = [[k.dim(name) for k in kernels] for name in sizes]
    logs = np.log(np.maximum(np.array(columns, dtype=np.float64).T, 1.0))
    if family != "gemm":
        return np.asarray(logs)
    halved = [
        [gcd(max(int(k.dim(name)), 1), VECTOR_WIDTH).bit_length() - 1 for name in "mnk"] for k in kernels
    ]
    return np.concatenate([logs, C.CPU_ALIGNMENT * np.array(halved, dtype=np.float64)], axis=1)


@dataclass(frozen=True, slots=True)
class MeasuredProcessor:
    """The figures the speed of light is computed from."""

    gflops: float
    memory_gbps: float

    def light_us(self, kernels: Sequence[Kernel]) -> FloatArray:
        """Arithmetic at peak plus traffic at full bandwidth plus a start; only a scale, never a claim."""
        times = np.zeros(len(kernels))
        for batch in batches(kernels):
            times[batch.positions] = (
                C.CPU_CALL_START_US
                + batch.flops / (self.gflops * 1e3)
                + batch.bytes / (self.memory_gbps * 1e3)
            )
        return times


@dataclass(frozen=True, slots=True)
class Efficiency:
    """One variant's ln(time / speed of light) as a function of its sizes."""

    sizes: FloatArray
    weights: FloatArray
    mean: float
    length: float
    spread: float

    @classmethod
    def fit(cls, sizes: FloatArray, log_ratio: FloatArray) -> Efficiency:
        """Length and noise by the error of leaving each sample out."""
        mean = float(np.median(log_ratio))
        rest = log_ratio - mean
        best: tuple[float, float, FloatArray] | None = None
        for length in LENGTHS:
            correlation = C.EFFICIENCY_SIGNAL**2 * _near(sizes, sizes, length)
            for noise in NOISES:
                inverse = np.linalg.inv(correlation + noise**2 * np.eye(len(rest)))
                weights = inverse @ rest
                left_out = float(np.mean(np.abs(weights / np.diag(inverse))))
                if best is None or left_out < best[0]:
                    best = (left_out, length, weights)
        if best is None:
            raise ValueError("a fit needs samples")
        return cls(sizes, C.EFFICIENCY_SIGNAL**2 * best[2], mean, best[1], max(best[0] * 1.25, 0.01))

    def log_ratio(self, sizes: FloatArray) -> FloatArray:
        return np.asarray(self.mean + _near(sizes, self.sizes, self.length) @ self.weights)

    def record(self) -> dict[str, Any]:
        return {
            "sizes": np.round(self.sizes, 4).tolist(), "weights": np.round(self.weights, 5).tolist(),
            "mean": round(self.mean, 5), "length": self.length, "spread": round(self.spread, 4),
        }  # fmt: skip

    @classmethod
    def from_record(cls, r: Mapping[str, Any], where: str) -> Efficiency:
        sizes, weights = (np.array(r[name], dtype=np.float64) for name in ("sizes", "weights"))
        if sizes.ndim != 2 or len(sizes) != len(weights) or not np.abs(sizes).max(initial=0.0) < LARGEST_LOG:
            raise InputError(where, "is damaged (its sizes are not those of kernels)", AGAIN)
        number(
            np.abs(weights).max(initial=0.0), f"{where}.weights", least=0.0, most=LARGEST_WEIGHT, fix=AGAIN
        )
        mean = number(r["mean"], f"{where}.mean", least=-LARGEST_LOG, most=LARGEST_LOG, fix=AGAIN)
        length = number(r["length"], f"{where}.length", least=1e-3, most=1e3, fix=AGAIN)
        return cls(
            sizes,
            weights,
            mean,
            length,
            number(r["spread"], f"{where}.spread", least=0.0, most=5.0, fix=AGAIN),
        )


def _near(a: FloatArray, b: FloatArray, length: float) -> FloatArray:
    squared = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-0.5 * squared / length**2))


@dataclass(frozen=True, slots=True)
class MeasuredKernels:
    """The kernel models of a calibrated platform.

    ``in_step`` is how much longer a variant's kernels take inside a step than in the benchmark
    (by family, from rehearsal steps); 1 where nothing was found.
    """

    machine: MeasuredProcessor
    variants: Mapping[str, Efficiency]
    in_step: Mapping[str, float]

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates:
        """Times of kernels of any family but lookups."""
        times = self.machine.light_us(kernels) if kernels else np.zeros(0)
        source = np.full(len(kernels), int(Source.ROOFLINE))
        spread = np.full(len(kernels), 0.7)
        notes: dict[int, str] = {}
        groups: dict[str, list[int]] = {}
        for i, kernel in enumerate(kernels):
            groups.setdefault(variant(kernel), []).append(i)
        for name, members in groups.items():
            model, exact = self._model(name)
            family = kernels[members[0]].family
            if model is None:
                notes.update(dict.fromkeys(members, f"no calibrated kernel like {name}"))
                times[members] *= 2.0
                continue
            sizes = features([kernels[i] for i in members])
            times[members] *= np.exp(model.log_ratio(sizes)) * self.in_step.get(family, 1.0)
            source[members] = int(Source.MEASURED if exact else Source.TRANSFERRED)
            spread[members] = model.spread if exact else 0.3
        return Estimates(times, source, spread, notes)

    def _model(self, name: str) -> tuple[Efficiency | None, bool]:
        """The variant's own model, or that of the best known relative."""
        if name in self.variants:
            return self.variants[name], True
        family, _, _ = name.partition("/")
        relatives = [v for k, v in self.variants.items() if k.startswith(family + "/")]
        return (max(relatives, key=lambda v: len(v.weights)), False) if relatives else (None, False)

    def save(self, folder: Path) -> None:
        """Write ``kernels/measured.json``."""
        (folder / "kernels").mkdir(parents=True, exist_ok=True)
        content = {
            "gflops": self.machine.gflops, "memory_gbps": self.machine.memory_gbps,
            "in_step": dict(self.in_step),
            "variants": {name: model.record() for name, model in sorted(self.variants.items())},
        }  # fmt: skip
        write_whole(folder / "kernels" / FILE, json.dumps(content) + "\n")

    @classmethod
    def load(cls, folder: Path) -> MeasuredKernels:
        path = folder / "kernels" / FILE
        try:
            content = read_figures(path, AGAIN)
            machine = MeasuredProcessor(
                *(
                    number(content[name], f"{path}: {name}", least=1e-6, most=1e9, fix=AGAIN)
                    for name in ("gflops", "memory_gbps")
                )
            )
            variants = {
                name: Efficiency.from_record(r, f"{path}: variants.{name}")
                for name, r in content["variants"].items()
            }
            in_step = {
                name: number(factor, f"{path}: in_step.{name}", least=0.01, most=100.0, fix=AGAIN)
                for name, factor in content["in_step"].items()
            }
            return cls(machine, variants, in_step)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(str(path), f"is damaged ({error})", AGAIN) from None
