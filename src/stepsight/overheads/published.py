"""Aggregates the published V100-era overhead studies into one set of statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stepsight.overheads.tables import OpStats, Overheads, Stat, class_defaults

_CPU_EVENT_US, _GPU_EVENT_US = 2.0, 4.0
"""What the profiler of that era adds per CPU and per GPU event (METHOD §2)."""
_RUNS_OF_SINGLE = 10
"""Iterations behind the single-workload table, which states no counts."""


def read_published(folder: Path) -> Overheads:
    """Pool the two published tables: T1–T5 of one DLRM, T1 and T2 of ten workloads."""
    single = msgspec.json.decode((folder / "overheads_DLRM_default_2048_v100.json").read_bytes())["data"]
    study = msgspec.json.decode((folder / "overheads_2022-02-14.json").read_bytes())
    t1 = Stat.pooled([Stat(*cell) for cell in study["t1"].values()])
    t2 = {op: Stat.pooled([Stat(*c) for c in cells.values()]) for op, cells in study["dicts"][0].items()}
    names = sorted({*t2, *single["t2"], *single["t5"]})
    ops = {name: _op(name, t1, t2, single) for name in names}
    launches = {
        call: _less(mean, std, _RUNS_OF_SINGLE, _GPU_EVENT_US) for call, (mean, std) in single["t4"].items()
    }
    # A synchronize call's length is mostly the wait for the GPU, which the simulation adds itself.
    launches["cudaStreamSynchronize"] = Stat(launches["cudaLaunchKernel"].mean, 0.0, 0)
    return Overheads(
        ops,
        class_defaults(ops),
        launches,
        "published V100-era studies of eager PyTorch (2021, 2022)",
        "V100-era",
    )


def _op(name: str, t1: Stat, study_t2: dict[str, Stat], single: dict[str, Any]) -> OpStats:
    launches = name in single["t2"] or name in study_t2

    def part(key: str) -> Stat | None:
        cell = single[key].get(name)
        return _less(cell[0], cell[1], _RUNS_OF_SINGLE, _CPU_EVENT_US) if cell else None

    if not launches:
        return OpStats(t1=t1, whole=part("t5"))
    gap = part("t5")
    return OpStats(
        t1=t1, t2=study_t2.get(name) or part("t2"), t3=part("t3"), t5=gap if gap and gap.mean > 0 else None
    )


def _less(mean: float, std: float, count: int, cost_us: float) -> Stat:
    kept = max(mean - cost_us, 0.3 * mean)
    return Stat(kept, std, count, mean - kept)
