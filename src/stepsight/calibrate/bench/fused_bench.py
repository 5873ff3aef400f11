"""Lookups of FBGEMM's table-batched operator as a rank of TorchRec makes them: all its tables in one call.

A forward, then a backward whose update is fused. Batches take turns, and the caches are swept before each
phase, as the dense part of a training step does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np

from stepsight.calibrate.bench.lookup_bench import PHASES
from stepsight.calibrate.lookup_fit import Calls, fit_lookups
from stepsight.errors import StepsightError
from stepsight.kernels.embedding.cpu.measured import MeasuredLookups
from stepsight.run.worker import Rank
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import FBGEMM, FBGEMM_OPTIMIZERS, Lookup, TableLookup
from stepsight.tables.table import optimizer_state
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.dlrm.embeddings import rank_lookup
from stepsight.workload.files import parse_workload

FUSED = "fused "
"""Before the phase, in a record of the journal."""
LEARNING_RATE = 1e-3
INSTALL_FBGEMM = "pip install torch==2.13.0 && pip install fbgemm-gpu-cpu==1.8.0"
"""The two load each other only in matching releases."""
_WARM = (TableLookup(8, 16, 4, 2, IndexDistribution.uniform()),)
"""A lookup of next to nothing, before what is timed: the code is warm in a training loop."""
_SWEEP_BYTES = 96 << 20
"""Larger than the last-level cache of common processors: reading it empties the caches."""


class FbgemmTables:
    """All tables of a lookup in one call of FBGEMM's operator on a CPU, as TorchRec makes it."""

    def __init__(self, lookup: Lookup, seed: int, batches: int = 2) -> None:
        import torch

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
        import torch

        from stepsight.run.lookup import TableBatch

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
        from fbgemm_gpu import (
            split_embedding_configs,
            split_table_batched_embeddings_ops_common,
            split_table_batched_embeddings_ops_training,
        )
    except (ImportError, OSError) as error:
        raise StepsightError(f"fbgemm-gpu-cpu does not load ({error}): {INSTALL_FBGEMM}") from None
    return (
        split_table_batched_embeddings_ops_training,
        split_table_batched_embeddings_ops_common,
        split_embedding_configs,
    )


def time_lookups(lookups: Sequence[Lookup], repeats: int, seed: int) -> list[list[list[float]]]:
    """µs of each lookup by repeat and phase, all lookups in turn, after one round that is thrown away."""
    import torch

    from stepsight.run.memory import keep_memory, map_memory

    # One thread's own time does not count what other programs take of the processor.
    clock_ns = thread_time_ns if torch.get_num_threads() == 1 else perf_counter_ns
    made = [FbgemmTables(lookup, seed + i) for i, lookup in enumerate(lookups)]
    warm = FbgemmTables(Lookup(_WARM, lookups[0].optimizer), seed, 1) if lookups else None
    keep_memory()
    sweep = torch.zeros(_SWEEP_BYTES // 4)
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


def own_lookup(document: Mapping[str, Any], rank: int) -> Lookup:
    """What a rank of the described model looks up."""
    workload = parse_workload(dict(document), str(document["name"]))
    assert isinstance(workload, DlrmWorkload)
    return rank_lookup(workload.config, workload.plan, rank, fused=True)


def measure(rank: Rank, documents: Sequence[Mapping[str, Any]], repeats: int, seed: int) -> list[Any]:
    """µs of the rank's own tables of each model, documents × repeats × phases; all ranks at once."""
    import torch

    from stepsight.calibrate.bench.kernel_bench import meet

    torch.set_num_threads(max(len(rank.cores), 1))
    lookups = [own_lookup(d, rank.rank) for d in documents]
    meet(rank)
    times = time_lookups(lookups, repeats, seed)
    meet(rank)
    return times


def records(documents: Sequence[Mapping[str, Any]], answers: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """What the journal keeps of the ranks' answers."""
    return [
        {
            "document": dict(document),
            "phase": FUSED + phase,
            "times_us": [[turn[p] for turn in answer[i]] for answer in answers],
        }
        for i, document in enumerate(documents)
        for p, phase in enumerate(PHASES)
    ]


def fit(rows: Sequence[Mapping[str, Any]]) -> MeasuredLookups | None:
    """The operator's model from the journal's records; None where it has none."""
    least: dict[tuple[str, int], dict[str, float]] = {}
    documents = {}
    for row in rows:
        if row["phase"].startswith(FUSED):
            documents[row["document"]["name"]] = row["document"]
            for rank, times in enumerate(row["times_us"]):
                held = least.setdefault((row["document"]["name"], rank), {})
                held[row["phase"].removeprefix(FUSED)] = min(times)
    found = [(own_lookup(documents[name], rank), us) for (name, rank), us in least.items()]
    found = [(lookup, us) for lookup, us in found if lookup.tables]
    return fit_calls([lookup for lookup, _ in found], [us for _, us in found]) if found else None


def fit_calls(
    lookups: Sequence[Lookup], times_us: Sequence[Mapping[str, float]], caches: Sequence[float] | None = None
) -> MeasuredLookups:
    """The operator's model from the times of whole calls; calls for the same tables are left out together."""
    sets: dict[tuple[object, ...], int] = {}
    for lookup in lookups:
        sets.setdefault(lookup.tables, len(sets))
    return fit_lookups(
        [table for lookup in lookups for table in lookup.tables],
        {phase: np.array([us[phase] for us in times_us]) for phase in PHASES},
        caches=caches, groups=[sets[lookup.tables] for lookup in lookups], operator=FBGEMM,
        optimizer=lookups[0].optimizer, calls=Calls.of([len(lookup.tables) for lookup in lookups]),
    )  # fmt: skip
