"""Random multi-table lookups over the ranges that a CPU's model is fitted and scored on."""

from __future__ import annotations

import numpy as np

from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import Lookup, TableLookup

MOST_TABLES, MOST_POOLING = 30, 100
ROWS, BATCH = (64, 4_000_000), (256, 8192)
DIMS, ODD_DIMS = (16, 32, 64, 128, 256), (24, 48, 96, 160, 192)
MOST_VALUES = 650_000_000
"""Values in all tables of a lookup: 2.6 GB of fp32."""
MOST_LOOKED_UP = 120_000_000
"""Values looked up in one pass: half a gigabyte, so that a repeat takes about a second at most."""


def random_lookups(sets: int, batches: int, seed: int) -> list[Lookup]:
    """``sets`` random sets of tables, each looked up with ``batches`` random batch sizes."""
    rng = np.random.default_rng(seed)
    lookups = []
    for _ in range(sets):
        tables = _random_set(rng)
        width = sum(dim * pooling for _, dim, pooling, _ in tables)
        most = min(BATCH[1], MOST_LOOKED_UP / width)
        for _ in range(batches):
            batch = int(_between(rng, BATCH[0], most))
            if rng.random() < 0.5:
                batch = min(2 ** round(np.log2(batch)), int(most))
            lookups.append(Lookup(tuple(TableLookup(r, d, batch, p, i) for r, d, p, i in tables)))
    return lookups


def _random_set(rng: np.random.Generator) -> list[tuple[int, int, float, IndexDistribution]]:
    count = round(_between(rng, 1, MOST_TABLES + 0.49))
    tables = [_random_table(rng) for _ in range(count)]
    while sum(rows * dim for rows, dim, _, _ in tables) > MOST_VALUES:
        largest = max(range(len(tables)), key=lambda i: tables[i][0] * tables[i][1])
        rows, dim, pooling, indices = tables[largest]
        tables[largest] = (rows // 2, dim, pooling, indices)
    while sum(dim * pooling for _, dim, pooling, _ in tables) * 2 * BATCH[0] > MOST_LOOKED_UP:
        tables.pop()
    return tables


def _random_table(rng: np.random.Generator) -> tuple[int, int, float, IndexDistribution]:
    rows = int(_between(rng, *ROWS))
    dim = int(rng.choice(DIMS if rng.random() < 0.85 else ODD_DIMS))
    return rows, dim, float(round(_between(rng, 1, MOST_POOLING))), _random_indices(rng)


def _random_indices(rng: np.random.Generator) -> IndexDistribution:
    kind = rng.random()
    if kind < 0.2:
        return IndexDistribution.uniform()
    if kind < 0.85:
        return IndexDistribution.zipf(round(float(rng.uniform(0.4, 1.3)), 2))
    return IndexDistribution.hot(
        round(float(_between(rng, 1e-4, 1e-1)), 5), round(float(rng.uniform(0.3, 0.95)), 2)
    )


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
