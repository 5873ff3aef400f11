"""Lookups of FBGEMM's table-batched operator as a rank of TorchRec makes them: all its tables in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepsight.calibrate.lookups.fit import ASSUMED_CACHES, fit_samples, table_sets
from stepsight.calibrate.lookups.microbench import PHASES, LookupBench, LookupSample, time_benches
from stepsight.kernels.embedding.cpu.measured import MeasuredLookups
from stepsight.kernels.embedding.cpu.work import detect_caches
from stepsight.run.worker import Rank
from stepsight.tables.lookup import Lookup
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.dlrm.embeddings import rank_lookup
from stepsight.workload.files import parse_workload

FUSED = "fused "
"""Before the phase, in a record of the journal."""


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
    benches = [
        LookupBench(own_lookup(d, rank.rank), device="cpu", batches=2, seed=seed + i)
        for i, d in enumerate(documents)
    ]
    meet(rank)
    samples = time_benches(benches, device="cpu", repeats=repeats)
    meet(rank)
    return [sample.times_us[0, :, :, 0].round(2).tolist() for sample in samples]


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
    found: dict[tuple[str, int], tuple[Mapping[str, Any], dict[str, list[float]]]] = {}
    for row in rows:
        if row["phase"].startswith(FUSED):
            for rank, times in enumerate(row["times_us"]):
                held = found.setdefault((row["document"]["name"], rank), (row["document"], {}))
                held[1][row["phase"].removeprefix(FUSED)] = times
    samples = []
    for (_, rank), (document, times) in found.items():
        lookup = own_lookup(document, rank)
        if lookup.tables:
            together = np.array([times[phase] for phase in PHASES]).T[None, :, :, None]
            samples.append(LookupSample(lookup, together))
    if not samples:
        return None
    return fit_samples(samples, detect_caches() or ASSUMED_CACHES, table_sets(samples))
