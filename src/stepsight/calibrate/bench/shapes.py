"""Which kernels a calibration measures: those of random workloads, and a grid around them.

The workloads give the shapes that occur together in real steps; the grid (every size of a
drawn kernel scaled by a random factor) keeps the models sane beyond them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from stepsight.calibrate.draws import (
    BATCHES_PER_RANK,
    FAMILIES,
    Document,
    random_dlrm,
    random_torchrec,
    random_transformer,
)
from stepsight.kernels.measured import variant
from stepsight.kernels.models import EMBEDDING_FAMILIES
from stepsight.program.job import Kernel
from stepsight.workload.dlrm.config import NOW, TORCHREC_STACK
from stepsight.workload.files import Workload
from stepsight.workload.transformers.build import MODELS

GRID_SHARE = 0.3
EVEN = 8
FEWEST_SHAPES = 12
"""A variant with fewer shapes in the drawn workloads gets scaled copies of them up to this many."""
_ROWS = ("rows",)
_FREE_SIZES = {
    "gemm": ("m", "n", "k"), "elementwise": ("elements",), "softmax": _ROWS, "softmax_backward": _ROWS,
    "layer_norm": _ROWS, "layer_norm_backward": _ROWS, "reduce": ("rows", "cols"), "copy_d2d": ("bytes",),
    "fill": ("bytes",), "transpose": ("elements",), "gather": _ROWS, "scatter": _ROWS, "nll_loss": _ROWS,
    "nll_loss_backward": _ROWS, "concat": ("write_bytes",),
}  # fmt: skip
"""Sizes that may be changed on their own without contradicting another one."""


def rehearsal_documents(ranks: int, dlrms: int, transformers: int, stack: str = NOW) -> list[Document]:
    """Random workloads of both kinds; transformer families without a builder are left out. Of TorchRec's
    stack, which trains DLRMs alone, as many of those."""
    if stack == TORCHREC_STACK:
        return [_of_all_sizes(random_torchrec(ranks, i), i, ranks) for i in range(dlrms + transformers)]
    known = [family for family in FAMILIES if family in MODELS]
    documents = [_of_all_sizes(random_dlrm(ranks, i), i, ranks) for i in range(dlrms)]
    return documents + [
        random_transformer(ranks, i, family=known[i % len(known)]) for i in range(transformers)
    ]


def _of_all_sizes(document: Document, number: int, ranks: int) -> Document:
    """With each batch size equally often: short steps, which latencies decide, are as many as long ones."""
    turn = number // 2 % len(BATCHES_PER_RANK)  # models with heavy and with mixed tables take turns
    return {**document, "batch": BATCHES_PER_RANK[turn] * ranks}


def kernels_of(workloads: Iterable[Workload], device: str) -> list[Kernel]:
    """Every distinct kernel of these workloads on a device, lookups left out."""
    seen: dict[Kernel, None] = {}
    for workload in workloads:
        for program in workload.job(device).programs:
            for op in program.ops:
                for kernel in op.kernels:
                    if kernel.family not in EMBEDDING_FAMILIES and kernel.lookup is None:
                        seen.setdefault(kernel)
    return list(seen)


def chosen_kernels(workloads: Sequence[Workload], device: str, most: int, seed: int = 0) -> list[Kernel]:
    """At most ``most`` kernels, shared fairly among variants: rare ones all, common ones by lot."""
    rng = np.random.default_rng(seed)
    groups: dict[str, list[Kernel]] = {}
    for kernel in kernels_of(workloads, device):
        groups.setdefault(variant(kernel), []).append(kernel)
    drawn = int(most * (1 - GRID_SHARE))
    weights = {name: _weight(name) * len(members) ** 0.5 for name, members in groups.items()}
    total = sum(weights.values())
    kept: list[Kernel] = []
    for name, members in groups.items():
        share = max(FEWEST_SHAPES, round(drawn * weights[name] / total))
        picked = [members[i] for i in rng.permutation(len(members))[:share]]
        kept += picked + _grid(picked, min(FEWEST_SHAPES, share) - len(picked), rng)
    return kept + _grid(kept, most - len(kept), rng)


def _weight(name: str) -> float:
    """Matrix products have three sizes and most of the time; the others mostly one size."""
    return 4.0 if name.startswith("gemm/") else 1.0


def _grid(kernels: Sequence[Kernel], count: int, rng: np.random.Generator) -> list[Kernel]:
    """``count`` kernels like the given ones, each free size multiplied by up to four or divided."""
    free = [k for k in kernels if k.family in _FREE_SIZES and k.operator != "index_put"]
    made: list[Kernel] = []
    for _ in range(max(count, 0) if free else 0):
        kernel = free[int(rng.integers(len(free)))]
        made.append(scaled(kernel, np.exp(rng.uniform(-1.4, 1.4, 3)).tolist()))
    return made


def scaled(kernel: Kernel, factors: Sequence[float]) -> Kernel:
    """The kernel with its free sizes multiplied; what follows from them follows."""
    sizes = dict(kernel.dims)
    before = sizes.get("elements", 1.0)
    for name, factor in zip(_FREE_SIZES[kernel.family], factors, strict=False):
        step = EVEN if sizes.get(name, 1.0) % EVEN == 0 else 1  # layer widths are seldom odd
        sizes[name] = float(max(step, step * round(sizes.get(name, 1.0) * factor / step)))
    if kernel.family == "elementwise":
        ratio = sizes["elements"] / before
        sizes["read_bytes"], sizes["write_bytes"] = sizes["read_bytes"] * ratio, sizes["write_bytes"] * ratio
    if kernel.family == "concat":
        sizes["read_bytes"] = sizes["write_bytes"]
    return replace(kernel, dims=tuple(sizes.items()))
