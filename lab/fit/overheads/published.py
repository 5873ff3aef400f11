"""The published V100-era overhead studies: T1 and T2 of many workloads, T1–T5 of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from lab.fit.overheads.sessions import median_stat, pooled_stat
from stepsight.overheads.tables import LAUNCH, OpStats, Overheads, Stat, stem

_CPU_EVENT_US, _GPU_EVENT_US = 2.0, 4.0
"""What the profiler of that era adds per CPU and per GPU event (METHOD §2)."""
_RUNS_OF_SINGLE = 10
"""Iterations of the single-workload table, which states no counts."""
_KEPT_SHARE = 0.3
"""A short call is never taken to be the profiler's cost alone: this much of it stays."""

_Cells = Mapping[str, list[float]]


@dataclass(frozen=True, slots=True)
class Study:
    """T1 by workload and T2 by operator and workload, the profiler's cost already out."""

    gaps: Mapping[str, Stat]
    inside: Mapping[str, Mapping[str, Stat]]

    @classmethod
    def read(cls, folder: Path) -> Study:
        file = msgspec.json.decode((folder / "overheads_2022-02-14.json").read_bytes())
        return cls(
            _by_workload(file["t1"]), {op: _by_workload(cells) for op, cells in file["dicts"][0].items()}
        )

    def typical(self, without: str = "") -> dict[str, OpStats]:
        """T1 and T2 by operator as a typical workload has them; ``without`` leaves one workload out.

        Each workload has one vote, however long it ran. T1 is known by workload alone: an
        operator gets it from the workloads it occurs in, by its share in each.
        """
        calls = {w: sum(s[w].count for s in self.inside.values() if w in s) for w in self.gaps}
        found = {}
        for op, stats in self.inside.items():
            others = {w: s for w, s in stats.items() if w != without}
            if others:
                shares = {w: s.count / calls[w] for w, s in others.items()}
                found[op] = OpStats(_weighed(self.gaps, shares), median_stat(list(others.values())))
        return found


def read_single(folder: Path) -> dict[str, OpStats]:
    """T2–T5 by operator of one DLRM, the profiler's cost taken out."""
    single = msgspec.json.decode((folder / "overheads_DLRM_default_2048_v100.json").read_bytes())["data"]
    calls: _Cells = single["t4"]

    def part(key: str, name: str) -> Stat | None:
        cell = single[key].get(name)
        return _less(cell, _CPU_EVENT_US) if cell and cell[0] > 0 else None

    found = {name: OpStats(whole=part("t5", name)) for name in single["t5"] if name not in single["t2"]}
    for name in single["t2"]:
        call = next((c for c in single["launches"].get(name, ()) if c in calls), LAUNCH)
        t4 = _less(calls[call], _GPU_EVENT_US)
        found[name] = OpStats(None, part("t2", name), part("t3", name), t4, part("t5", name))
    return found


def _by_workload(cells: _Cells) -> dict[str, Stat]:
    """Batch sizes of one workload together."""
    found: dict[str, list[Stat]] = {}
    for key, (mean, std, count) in cells.items():
        found.setdefault(key.split("|")[0], []).append(Stat(mean, std, int(count)))
    return {workload: pooled_stat(stats) for workload, stats in found.items()}


def _weighed(gaps: Mapping[str, Stat], shares: Mapping[str, float]) -> Stat:
    chosen, weights = [gaps[w] for w in shares], list(shares.values())
    mean = float(np.average([g.mean for g in chosen], weights=weights))
    spread = float(np.sqrt(np.average([g.std**2 for g in chosen], weights=weights)))
    return Stat(mean, spread, sum(g.count for g in chosen))


def _less(cell: list[float], cost_us: float) -> Stat:
    mean, std = cell
    kept = max(mean - cost_us, _KEPT_SHARE * mean)
    return Stat(kept, std, _RUNS_OF_SINGLE, mean - kept)


NAME = "recommendation"
MODELS = ("DLRM_default", "DLRM_MLPerf", "DLRM_DDP")
WITHOUT = Path(__file__).parents[2] / "score" / "e2e" / "hosts"
"""Where the class without each of its models lies, for scores of that model."""
LAUNCH_US = 4.0
"""T4 as the study's own predictor fixes it; its profiler read 10.4 µs, most of it its own."""


def recommendation_set(folder: Path, base: Overheads, without: str = "") -> Overheads:
    """The class, or the same without one of its models; T3 and T5 are those of ``base``."""
    file = msgspec.json.decode((folder / "overheads_2022-02-14.json").read_bytes())
    inside: Mapping[str, _Cells] = file["dicts"][0]
    voters = [model for model in MODELS if model != without]
    gap = median_stat(_votes(file["t1"], voters))
    known = {stem(name) for name in (*inside, *read_single(folder))}

    def mine(name: str, shared: OpStats) -> OpStats:
        votes = _votes(inside.get(name, {}), voters)
        return OpStats(
            gap, median_stat(votes) if votes else shared.t2, shared.t3, Stat(LAUNCH_US), shared.t5,
            shared.whole,
        )  # fmt: skip

    ops = {name: mine(name, shared) for name, shared in base.ops.items() if stem(name) in known}
    classes = {name: mine("", shared) for name, shared in base.classes.items()}
    provenance = f"{', '.join(voters)} of the study of 2022 (V100 host); T3, T5: {base.provenance}"
    return Overheads(ops, classes, {call: Stat(LAUNCH_US) for call in base.launches}, provenance, NAME)


def _votes(cells: _Cells, models: list[str]) -> list[Stat]:
    """One vote a model: the middle of its batch sizes."""
    votes = []
    for model in models:
        batches = [
            Stat(mean, std, int(count))
            for key, (mean, std, count) in cells.items()
            if key.split("|")[0] == model and std < mean
        ]
        if batches:
            votes.append(median_stat(batches))
    return votes
