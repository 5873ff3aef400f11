"""A machine that obeys a simple law, as the samples a calibration of it would leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stepsight.calibrate.draws import chosen_kernels, random_tables, rehearsal_documents, table_lookup
from stepsight.calibrate.journal import kernel_record
from stepsight.calibrate.session import COLLECTIVE_BYTES, COLLECTIVE_KINDS
from stepsight.kernels.columns import batches
from stepsight.program.job import Kernel
from stepsight.workload.files import parse_workload

GFLOPS, GBPS, START_US = 50.0, 10.0, 3.0


def kernel_us(kernel: Kernel) -> float:
    batch = next(iter(batches([kernel])))
    return float(START_US + batch.flops[0] / (GFLOPS * 1e3) + batch.bytes[0] / (GBPS * 1e3))


def lookup_us(record: dict[str, Any], phase: str) -> float:
    """Distinct rows come from memory, repeated ones are four times as fast."""
    table = table_lookup(record)
    distinct = table.indices.stats(table.rows, table.lookups).unique_rows
    row = 4 * table.dim / (GBPS * 1e3)
    return (1 + (phase == "backward")) * (10 + row * (distinct + (table.lookups - distinct) / 4))


def collective_us(kind: str, size: float) -> float:
    return 100 + size / 1e3 * (2 if kind == "all_reduce" else 1)


def samples(kernels: int = 300, tables: int = 80, noise: float = 0.01) -> dict[str, list[dict[str, Any]]]:
    rng = np.random.default_rng(0)

    def repeats(time_us: float) -> list[list[float]]:
        return [[float(time_us * np.exp(rng.normal(0, noise))) for _ in range(6)] for _ in range(2)]

    workloads = [parse_workload(d, d["name"]) for d in rehearsal_documents(2, 4, 4)]
    chosen = chosen_kernels(workloads, "cpu", kernels)
    records = random_tables(tables, 0)
    each: Callable[[str], list[dict[str, Any]]] = lambda phase: [  # noqa: E731
        {**r, "phase": phase, "times_us": repeats(lookup_us(r, phase))} for r in records
    ]
    return {
        "kernels": [{**kernel_record(k), "times_us": repeats(kernel_us(k))} for k in chosen],
        "lookups": [*each("forward"), *each("backward")],
        "collectives": [
            {"kind": kind, "bytes": size, "ranks": 2, "times_us": repeats(collective_us(kind, size))}
            for kind in COLLECTIVE_KINDS
            for size in COLLECTIVE_BYTES
        ],
        "contention": [
            {"comm_alone_us": 100.0, "compute_alone_us": 300.0, "comm_us": 150.0, "compute_us": 350.0}
        ],
    }
