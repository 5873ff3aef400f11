"""Random sharding tasks as METHOD §7 draws them, from a synthetic population of tables.

The published tasks draw from 856 and 788 tables of a data set that users may not have, so
the population here is drawn too: its sizes follow the published figures of that data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepsight.errors import InputError
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.sharders import SHARDERS
from stepsight.tables.table import Table
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.dlrm.config import DlrmConfig
from stepsight.workload.training import Training

DIMS = (32, 64, 128, 256)
BATCHES = (512, 1024, 2048, 4096)
HEAVY_POOLING = 20.0
"""METHOD §7: dims and batches of the random configurations; a heavy table has mean L ≥ 20."""
TABLES_PER_RANK = (9, 16)
"""METHOD §7: 36–66 tables on 4 GPUs."""

MEDIAN_ROWS, SIGMA_ROWS, MOST_ROWS = 1.0e6, 1.68, 40_000_000
"""Log-normal with the mean of 4.1 million rows that DreamShard (NeurIPS 2022) states for the
856 tables of dlrm_datasets; capped as MLPerf's DLRM caps Criteo's tables."""
MEDIAN_POOLING, SIGMA_POOLING, MOST_POOLING = 4.5, 1.55, 200.0
"""Log-normal with the mean of 15 lookups that DreamShard states for the same tables."""
SKEW = (0.6, 1.2)
"""Zipf exponents of production index streams lie about here (DLRM index reuse, e.g. RecShard 2022)."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How a task is shrunk to the machine that must run it; the defaults shrink nothing."""

    dims: tuple[int, ...] = DIMS
    batches: tuple[int, ...] = BATCHES
    least_rows: int = 10
    most_rows: int = MOST_ROWS
    most_pooling: float = MOST_POOLING
    tables_per_rank: tuple[int, int] = TABLES_PER_RANK
    most_table_bytes: int = 2**62


@dataclass(frozen=True, slots=True)
class Task:
    """Tables to place over ``ranks`` ranks at a global batch of ``batch``."""

    name: str
    tables: tuple[Table, ...]
    batch: int
    ranks: int
    heavy: bool


def population(
    count: int, seed: int = 0, scale: Scale | None = None, *, heavy: bool = False
) -> tuple[Table, ...]:
    """``count`` tables; ``heavy`` keeps only those with a mean pooling of at least 20."""
    scale = scale or Scale()
    rng = np.random.default_rng(seed)
    tables: list[Table] = []
    while len(tables) < count:
        rows = int(np.clip(rng.lognormal(np.log(MEDIAN_ROWS), SIGMA_ROWS), scale.least_rows, scale.most_rows))
        pooling = float(
            np.clip(rng.lognormal(np.log(MEDIAN_POOLING), SIGMA_POOLING), 1.0, scale.most_pooling)
        )
        dim = int(rng.choice(scale.dims))
        skew = round(float(rng.uniform(*SKEW)), 3)
        if heavy and pooling < HEAVY_POOLING:
            continue
        rows = max(scale.least_rows, min(rows, scale.most_table_bytes // (4 * dim)))
        name = f"t{len(tables)}"
        tables.append(Table(name, rows, dim, round(pooling, 2), IndexDistribution.zipf(skew)))
    return tuple(tables)


def random_task(ranks: int, seed: int, scale: Scale | None = None, *, heavy: bool = True) -> Task:
    """One seeded task: tables per rank and a batch within the scale, heavy tables only or a mixture."""
    if ranks < 1:
        raise InputError("ranks", f"is {ranks}", "a task needs at least one rank")
    scale = scale or Scale()
    rng = np.random.default_rng([seed, ranks, int(heavy)])
    low, high = scale.tables_per_rank
    count = int(rng.integers(low * ranks, high * ranks + 1))
    tables = population(count, int(rng.integers(2**31)), scale, heavy=heavy)
    batch = int(rng.choice(scale.batches))
    return Task(f"{'heavy' if heavy else 'mixed'}-{ranks}-{seed}", tables, batch, ranks, heavy)


def task_workload(
    task: Task, *, features: int = 512, bottom: Sequence[int] = (512, 1024, 256, 128),
    top: Sequence[int] = (1024, 512, 256, 1), interaction: str = "cat",
) -> DlrmWorkload:  # fmt: skip
    """A task's DLRM, with the dense part of METHOD §7 unless stated otherwise."""
    plan = SHARDERS["size_lookup_greedy"](task.tables, task.ranks)
    return DlrmWorkload(
        DlrmConfig(
            task.name, task.batch, features, tuple(bottom), tuple(top), interaction, task.tables,
            Training(), task.ranks, plan,
        )
    )  # fmt: skip
