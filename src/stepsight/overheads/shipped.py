"""Makes the overheads that ship with stepsight, one set per host era.

Sources: the published V100-era studies, and every trace whose GPU is in the catalogue.
Operators that an era's traces never show are carried over from the V100 era, scaled by
how much faster the era's host is on the operators that both have.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from stepsight.errors import InputError
from stepsight.overheads.gather import Gathered
from stepsight.overheads.published import read_published
from stepsight.overheads.tables import OpStats, Overheads, class_defaults, pooled
from stepsight.platform.gpus import find_gpu, gpu_catalogue
from stepsight.trace.files import trace_files
from stepsight.trace.host_times import trace_samples
from stepsight.trace.kineto import looks_like_kineto, read_kineto
from stepsight.workload.program import HostTimes

BASE_ERA = "v100"
_FEWEST = 3
"""An operator seen less often than this in an era's traces is not listed by name."""
_STALL_US = 2000.0
"""A part above this is a stall (an allocation, a page fault, a busy core), not the operator's cost."""
_LEFT_OUT = ("tp2_2xV100", "critical_path_units", "dlrm_kineto.tar", "vgg13_H100")
"""A GPU shared with another job; unit tests of a tracer; a copy of another folder; a first step
that still allocates."""


def shipped_sets(data: Path) -> dict[str, Overheads]:
    """The overheads of every host era, from the folder of measured data."""
    published = read_published(data / "overheads")
    by_era: dict[str, Gathered] = defaultdict(Gathered)
    files: dict[str, int] = defaultdict(int)
    for file in trace_files([data / "traces"]):
        if any(part in file.path for part in _LEFT_OUT) or not looks_like_kineto(file.content):
            continue
        try:
            trace = read_kineto(file)
        except InputError:
            continue
        era = host_era(trace.device)
        # ROCm's tracer slows the host far more than CUPTI does: its traces say little of a host.
        if era is None or not trace.host_ops or "AMD" in trace.device:
            continue
        by_era[era].add(s for s in trace_samples(trace) if _is_typical(s.times))
        files[era] += 1
    base = pooled([published, _listed(by_era[BASE_ERA], BASE_ERA, files[BASE_ERA])])
    base = Overheads(base.ops, class_defaults(base.ops), base.launches, base.provenance, BASE_ERA)
    sets = {BASE_ERA: base}
    for era, gathered in by_era.items():
        if era != BASE_ERA:
            mine = _listed(gathered, era, files[era])
            sets[era] = mine.over(base.scaled(_ratio(mine, base)))
    return sets


def host_era(device: str) -> str | None:
    """The era of the host that a GPU of this name usually has."""
    entry = find_gpu(device) if device else None
    if entry:
        return entry.host_era
    alike = [e for name, e in gpu_catalogue().items() if name.split("-")[0] in device]
    return alike[0].host_era if alike else None


def _is_typical(times: HostTimes) -> bool:
    return max(times.t1, times.t2, times.t3, times.t4, times.t5) < _STALL_US


def _listed(gathered: Gathered, era: str, files: int) -> Overheads:
    whole = gathered.overheads(era, f"{files} profiler traces of {era}-era hosts")
    ops = {n: o for n, o in whole.ops.items() if _seen(o) >= _FEWEST and "triton" not in n}
    return Overheads(ops, class_defaults(ops), whole.launches, whole.provenance, era)


def _seen(stats: OpStats) -> int:
    return max((s.count for s in (stats.t2, stats.whole) if s is not None), default=0)


def _ratio(mine: Overheads, base: Overheads) -> float:
    """Host time of this era over the base era's: the median over operators that both have."""
    ratios = []
    for name in mine.ops.keys() & base.ops.keys():
        here, there = mine.ops[name].t2, base.ops[name].t2
        if here is not None and there is not None and there.mean > 1:
            ratios.append(here.mean / there.mean)
    return float(np.clip(np.median(ratios), 0.2, 1.5)) if ratios else 1.0
