"""Embedding lookups as `stepsight run` trains them, with different tables, poolings and skews."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stepsight.calibrate.bench.kernel_bench import meet
from stepsight.run.worker import Rank
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import Lookup, TableLookup

ROUND_TABLES = 8
"""Tables in turn, as a rank's own tables follow each other in a step."""
ROWS, DIMS, BAGS, POOLING = (500.0, 1e6), (16, 32, 64, 128, 256), (256.0, 4096.0), (1.0, 200.0)
MOST_TABLE_BYTES = 128 << 20
MOST_LOOKUP_BYTES = 224 << 20
WARM = 1
PHASES, ALONE = ("forward", "backward"), " alone"
SWEEP_BYTES = 64 << 20
"""Between the lookups of a step and its updates, and from step to step, the dense part empties the caches."""


@dataclass(frozen=True, slots=True)
class TableTimes:
    """A table's µs on one rank, turn by turn; alone only on the first rank, and where asked for."""

    forward: list[float]
    backward: list[float]
    forward_alone: list[float]
    backward_alone: list[float]

    def of(self, phase: str) -> list[float]:
        """The times of ``forward``, ``backward``, ``forward alone`` or ``backward alone``."""
        times: list[float] = getattr(self, phase.replace(" ", "_"))
        return times


def beside_others(together_us: Sequence[float], alone_us: Sequence[float]) -> float:
    """How many times longer the same lookups take while all ranks look up; one where nothing was measured.

    All of them together: large ones, which memory limits, count most.
    """
    return max(sum(together_us) / sum(alone_us), 1.0) if sum(alone_us) > 0 else 1.0


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
    rank: Rank, tables: Sequence[TableLookup], repeats: int, seed: int, alone: bool = False
) -> list[TableTimes]:
    """Lookups and updates of a round of tables, all ranks at once, each in its own order.

    With ``alone`` the first rank does each turn a second time while the others wait: the two follow
    one another, since the machine itself is slower or faster from minute to minute.
    """
    import torch

    from stepsight.run.memory import map_memory

    bench = _Bench(rank, tables, seed)
    sweep = torch.zeros(SWEEP_BYTES // 4, device=rank.device)
    map_memory(2 * MOST_LOOKUP_BYTES, rank.device)
    times = [TableTimes([], [], [], []) for _ in tables]
    with torch.no_grad():
        for turn in range(repeats + WARM):
            bench.shuffle()
            for phase in PHASES:
                for how in ("", ALONE) if alone else ("",):
                    sweep.add_(1.0)
                    meet(rank)
                    if how and rank.rank:
                        continue
                    for i, taken in bench.turn(phase, turn):
                        if turn >= WARM:
                            times[i].of(phase + how).append(taken)
    meet(rank)
    return times


class _Bench:
    """The tables of a round on one rank, with two batches that take turns."""

    def __init__(self, rank: Rank, tables: Sequence[TableLookup], seed: int) -> None:
        import torch

        from stepsight.calibrate.bench.kernel_bench import Stopwatch
        from stepsight.run.lookup import TableBatch

        # What runs on the other ranks meanwhile is part of a table's time: let it be another table.
        self.rng = np.random.default_rng([seed, rank.rank])
        self.device, self.tables = rank.device, tables
        self.stopwatch = Stopwatch(rank.device, own_time=len(rank.cores) == 1)
        self.weights = [torch.rand(t.rows, t.dim, device=rank.device) for t in tables]
        self.batches = [
            [TableBatch.sample(Lookup((t,)), 0, self.rng, rank.device) for _ in range(2)] for t in tables
        ]
        self.order = list(range(len(tables)))

    def shuffle(self) -> None:
        """What runs before a table is part of its time: let it be something else each time."""
        self.rng.shuffle(self.order)

    def turn(self, phase: str, number: int) -> Iterator[tuple[int, float]]:
        """Every table once: which it is, and its µs."""
        import torch

        from stepsight.run.lookup import pooled, update_rows

        if phase == "forward":
            for i in self.order:
                yield i, self.stopwatch.time_us(partial(pooled, self.weights[i], self.batches[i][number % 2]))
            return
        grads = [torch.rand(t.batch, t.dim, device=self.device) for t in self.tables]
        for i in reversed(self.order):
            update = partial(update_rows, self.weights[i], self.batches[i][number % 2], grads[i], 0.01)
            yield i, self.stopwatch.time_us(update)
