"""Embedding lookups as `stepsight run` trains them, with different tables, poolings and skews."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from stepsight.calibrate.kernel_bench import meet
from stepsight.kernels.embedding.indices import IndexDistribution
from stepsight.kernels.embedding.lookup import Lookup, TableLookup
from stepsight.run.worker import Rank

ROUND_TABLES = 8
"""Tables in turn, as a rank's own tables follow each other in a step."""
ROWS, DIMS, BAGS, POOLING = (500.0, 1e6), (16, 32, 64, 128, 256), (256.0, 4096.0), (1.0, 80.0)
MOST_TABLE_BYTES = 128 << 20
MOST_LOOKUP_BYTES = 48 << 20
WARM = 1
PHASES, ALONE = ("forward", "backward"), " alone"
SWEEP_BYTES = 64 << 20
"""Between the lookups of a step and its updates, and from step to step, the dense part empties the caches."""


def random_tables(count: int, seed: int) -> list[dict[str, Any]]:
    """Tables over the ranges that calibration covers: every other one skewed."""
    rng = np.random.default_rng([seed, 5])

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    tables: list[dict[str, Any]] = []
    while len(tables) < count:
        dim = int(rng.choice(DIMS))
        bags, pooling = round(between(*BAGS)), round(between(*POOLING), 1)
        if bags * pooling * dim * 4 > MOST_LOOKUP_BYTES:
            continue
        rows = int(min(between(*ROWS), MOST_TABLE_BYTES / (4 * dim)))
        skew = round(float(rng.uniform(0.3, 1.3)), 2) if rng.random() < 0.7 else 0.0
        tables.append({"rows": rows, "dim": dim, "batch": bags, "pooling": pooling, "zipf": skew})
    return tables


def table_lookup(record: Mapping[str, Any]) -> TableLookup:
    return TableLookup(
        int(record["rows"]), int(record["dim"]), int(record["batch"]), float(record["pooling"]),
        IndexDistribution.zipf(record["zipf"]) if record["zipf"] else IndexDistribution.uniform(),
    )  # fmt: skip


def measure(
    rank: Rank, records: Sequence[Mapping[str, Any]], repeats: int, seed: int
) -> list[tuple[list[float], list[float]]]:
    """Forward and update times in µs of a round of tables, all ranks at once and in the same order."""
    return _round(rank, records, repeats, seed)


def measure_alone(
    rank: Rank, records: Sequence[Mapping[str, Any]], repeats: int, seed: int
) -> list[tuple[list[float], list[float]]]:
    """The same on the first rank while the others wait; they have nothing to say."""
    times = _round(replace(rank, ranks=1), records, repeats, seed) if rank.rank == 0 else []
    meet(rank)
    return times


def _round(
    rank: Rank, records: Sequence[Mapping[str, Any]], repeats: int, seed: int
) -> list[tuple[list[float], list[float]]]:
    import torch

    from stepsight.calibrate.stopwatch import Stopwatch
    from stepsight.run.lookup import TableBatch, pooled, update_rows
    from stepsight.run.memory import map_memory

    stopwatch = Stopwatch(rank.device, own_time=len(rank.cores) == 1)
    rng, device = np.random.default_rng(seed), rank.device
    lookups = [Lookup((table_lookup(r),)) for r in records]
    weights = [torch.rand(x.tables[0].rows, x.tables[0].dim, device=device) for x in lookups]
    batches = [[TableBatch.sample(x, 0, rng, device) for _ in range(2)] for x in lookups]
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in records]
    order = list(range(len(records)))
    sweep = torch.zeros(SWEEP_BYTES // 4, device=device)
    map_memory(4 * MOST_LOOKUP_BYTES, device)
    with torch.no_grad():
        for repeat in range(repeats + WARM):
            # What runs before a table is part of its time: let it be something else each time.
            rng.shuffle(order)
            sweep.add_(1.0)
            meet(rank)
            for i in order:
                batch = batches[i][repeat % 2]
                taken = stopwatch.time_us(partial(pooled, weights[i], batch))
                if repeat >= WARM:
                    times[i][0].append(taken)
            sweep.add_(1.0)
            grads = [torch.rand(x.tables[0].batch, x.tables[0].dim, device=device) for x in lookups]
            meet(rank)
            for i in reversed(order):
                batch = batches[i][repeat % 2]
                taken = stopwatch.time_us(partial(update_rows, weights[i], batch, grads[i], 0.01))
                if repeat >= WARM:
                    times[i][1].append(taken)
    return times
