"""Embedding lookups as `stepsight run` trains them: table by table in plain torch, or all tables of a rank of
TorchRec in one call of FBGEMM's table-batched operator.

Batches take turns, and the caches are swept before each phase, as the dense part of a training step does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np
import torch

from stepsight.calibrate.draws import MOST_LOOKUP_BYTES, rank_tables
from stepsight.calibrate.journal import ALONE, PHASES
from stepsight.calibrate.kernel_bench import Stopwatch, meet
from stepsight.errors import StepsightError
from stepsight.run.dlrm import TableBatch, pooled, update_rows
from stepsight.run.worker import Rank, keep_memory, map_memory
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import FBGEMM_OPTIMIZERS, Lookup, TableLookup
from stepsight.tables.table import optimizer_state

ROUND_TABLES = 8
"""Tables in turn, as a rank's own tables follow each other in a step."""
WARM = 1
SWEEP_BYTES = 64 << 20
"""Between the lookups of a step and its updates, and from step to step, the dense part empties the caches."""
LEARNING_RATE = 1e-3


def measure(
    rank: Rank, tables: Sequence[TableLookup], repeats: int, seed: int, alone: bool = False
) -> list[dict[str, list[float]]]:
    """Lookups and updates of a round of tables, all ranks at once, each in its own order: µs by phase.

    With ``alone`` the first rank does each turn a second time while the others wait: the two follow
    one another, since the machine itself is slower or faster from minute to minute.
    """
    bench = _Bench(rank, tables, seed)
    sweep = torch.zeros(SWEEP_BYTES // 4, device=rank.device)
    map_memory(2 * MOST_LOOKUP_BYTES, rank.device)
    times: list[dict[str, list[float]]] = [
        {p + how: [] for p in PHASES for how in ("", ALONE)} for _ in tables
    ]
    with torch.no_grad():
        for turn in range(repeats + WARM):
            bench.rng.shuffle(bench.order)  # what runs before a table is part of its time
            for phase in PHASES:
                for how in ("", ALONE) if alone else ("",):
                    sweep.add_(1.0)
                    meet(rank)
                    if how and rank.rank:
                        continue
                    for i, taken in bench.turn(phase, turn):
                        if turn >= WARM:
                            times[i][phase + how].append(taken)
    meet(rank)
    return times


class _Bench:
    """The tables of a round on one rank, with two batches that take turns."""

    def __init__(self, rank: Rank, tables: Sequence[TableLookup], seed: int) -> None:
        # What runs on the other ranks meanwhile is part of a table's time: let it be another table.
        self.rng = np.random.default_rng([seed, rank.rank])
        self.device, self.tables = rank.device, tables
        self.stopwatch = Stopwatch(rank.device, own_time=len(rank.cores) == 1)
        self.weights = [torch.rand(t.rows, t.dim, device=rank.device) for t in tables]
        self.batches = [
            [TableBatch.sample(Lookup((t,)), 0, self.rng, rank.device) for _ in range(2)] for t in tables
        ]
        self.order = list(range(len(tables)))

    def turn(self, phase: str, number: int) -> Iterator[tuple[int, float]]:
        """Every table once: which it is, and its µs."""
        if phase == "forward":
            for i in self.order:
                yield i, self.stopwatch.time_us(partial(pooled, self.weights[i], self.batches[i][number % 2]))
            return
        grads = [torch.rand(t.batch, t.dim, device=self.device) for t in self.tables]
        for i in reversed(self.order):
            update = partial(update_rows, self.weights[i], self.batches[i][number % 2], grads[i], 0.01)
            yield i, self.stopwatch.time_us(update)


INSTALL_FBGEMM = "pip install torch==2.13.0 && pip install fbgemm-gpu-cpu==1.8.0"
"""The two load each other only in matching releases."""
_NEXT_TO_NOTHING = (TableLookup(8, 16, 4, 2, IndexDistribution.uniform()),)
"""Looked up before what is timed: the code is warm in a training loop."""
_FUSED_SWEEP_BYTES = 96 << 20
"""Larger than the last-level cache of common processors: reading it empties the caches."""


class FbgemmTables:
    """All tables of a lookup in one call of FBGEMM's operator on a CPU, as TorchRec makes it."""

    def __init__(self, lookup: Lookup, seed: int, batches: int = 2) -> None:
        training, common, configs = _fbgemm(lookup)
        sizes = [t.rows * t.dim for t in lookup.tables]
        per_element, per_row = optimizer_state(lookup.optimizer)
        state = int(sum(t.rows * (per_element * t.dim + per_row) for t in lookup.tables))
        self.weights = torch.zeros(sum(sizes) + state)
        buffers = {"weights": self.weights[: sum(sizes)]}
        if state:
            buffers["momentum1"] = self.weights[sum(sizes) :]
        place = (common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
        self.lookup = lookup
        self.module = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(t.rows, t.dim, *place) for t in lookup.tables],
            optimizer=getattr(configs.EmbOptimType, FBGEMM_OPTIMIZERS[lookup.optimizer]),
            learning_rate=LEARNING_RATE,
            preallocated_host_buffers=buffers,
        )
        rng = np.random.default_rng(seed)
        self.batches = [self._batch(rng) for _ in range(batches)]

    def _batch(self, rng: np.random.Generator) -> Any:
        """All tables' indices one after the other, and where each bag of each table starts."""
        tables = [TableBatch.sample(self.lookup, i, rng, "cpu") for i in range(len(self.lookup.tables))]
        starts = np.cumsum([0, *(len(t.indices) for t in tables)])
        offsets = [t.offsets[:-1] + int(start) for t, start in zip(tables, starts, strict=False)]
        return torch.cat([t.indices for t in tables]), torch.cat([*offsets, torch.tensor(starts[-1:])])

    @property
    def workspace_bytes(self) -> int:
        """Outputs and gradients, every table's sorted lookups (16 bytes each) and the sort's buffers."""
        tables = self.lookup.tables
        return int(16 * sum(t.batch * t.dim for t in tables) + 64 * sum(t.lookups for t in tables))


def _fbgemm(lookup: Lookup) -> tuple[Any, Any, Any]:
    """FBGEMM's modules, where it can do this lookup."""
    if lookup.optimizer not in FBGEMM_OPTIMIZERS:
        raise StepsightError(
            f"FBGEMM has no fused {lookup.optimizer} on a CPU; use one of {', '.join(FBGEMM_OPTIMIZERS)}"
        )
    if any(t.dtype != "fp32" or t.weighted or t.dim % 4 for t in lookup.tables):
        raise StepsightError("the fbgemm operator is measured for unweighted fp32 rows of 4, 8, 12, … values")
    try:
        from fbgemm_gpu import split_embedding_configs as configs
        from fbgemm_gpu import split_table_batched_embeddings_ops_common as common
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as training
    except (ImportError, OSError) as error:
        raise StepsightError(f"fbgemm-gpu-cpu does not load ({error}): {INSTALL_FBGEMM}") from None
    return training, common, configs


def time_lookups(lookups: Sequence[Lookup], repeats: int, seed: int) -> list[list[list[float]]]:
    """µs of each lookup by repeat and phase, all lookups in turn, after one round that is thrown away."""
    # One thread's own time does not count what other programs take of the processor.
    clock_ns = thread_time_ns if torch.get_num_threads() == 1 else perf_counter_ns
    made = [FbgemmTables(lookup, seed + i) for i, lookup in enumerate(lookups)]
    warm = FbgemmTables(Lookup(_NEXT_TO_NOTHING, lookups[0].optimizer), seed, 1) if lookups else None
    keep_memory()
    sweep = torch.zeros(_FUSED_SWEEP_BYTES // 4)
    map_memory(max((tables.workspace_bytes for tables in made), default=0), "cpu")
    times: list[list[list[float]]] = [[] for _ in made]
    for repeat in range(repeats + 1):
        for kept, tables in zip(times, made, strict=True):
            batch = tables.batches[repeat % len(tables.batches)]
            sweep.add_(1.0)
            warmed = warm.module(*warm.batches[0]) if warm else None
            start = clock_ns()
            output = tables.module(*batch)
            forward = clock_ns() - start
            sweep.add_(1.0)
            gradient = output.detach().clone()
            if warmed is not None:
                warmed.backward(warmed.detach().clone())
            start = clock_ns()
            output.backward(gradient)
            if repeat:
                kept.append([round(ns / 1e3, 2) for ns in (forward, clock_ns() - start)])
    return times


def measure_fused(rank: Rank, documents: Sequence[Mapping[str, Any]], repeats: int, seed: int) -> list[Any]:
    """µs of the rank's own tables of each model, documents × repeats × phases; all ranks at once."""
    torch.set_num_threads(max(len(rank.cores), 1))
    lookups = [rank_tables(d, rank.rank) for d in documents]
    meet(rank)
    times = time_lookups(lookups, repeats, seed)
    meet(rank)
    return times
