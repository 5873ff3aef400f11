"""Host overheads of one workload, known from the others."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import click

from lab.fit.overheads.published import Study
from lab.fit.traces.runs import scored_runs
from stepsight.overheads.tables import Overheads
from stepsight.prediction.traced.predict import INDIVIDUAL, TRACED, trace_job
from stepsight.program.job import Job
from stepsight.score import BLIND, FIT, Score
from stepsight.trace.job import typical_step
from stepsight.trace.platforms import own_platform

TOPIC = "overheads"
_TABLE = "shipped table"
_WHOSE = {
    INDIVIDUAL: "from the other steps, or the other ranks",
    _TABLE: "from the shipped table of the host's generation",
}


def scores(data: Path) -> list[Score]:
    """The published studies workload by workload, then the traces step by step."""
    found: list[Score] = []
    for part, made in (("overheads", lambda f: _published(Study.read(f))), ("traces", _traces)):
        if (data / part).is_dir():
            found += made(data / part)
        else:
            click.echo(f"skipped: {part} is not in {data}", err=True)
    return found


def _published(study: Study) -> list[Score]:
    """Host times of one workload as a typical one of the others has them."""
    t2: list[tuple[float, float]] = []
    t1: list[tuple[float, float]] = []
    for workload, gap in study.gaps.items():
        known = study.typical(without=workload)
        mine = {op: by[workload] for op, by in study.inside.items() if workload in by and op in known}
        t2 += [(stats.t2.mean, mine[op].mean) for op, stats in known.items() if op in mine and stats.t2]
        gaps = [(stats.t1.mean, mine[op].count) for op, stats in known.items() if op in mine and stats.t1]
        t1.append((sum(us * n for us, n in gaps) / sum(n for _, n in gaps), gap.mean))
    return [
        _score("T1", t1, "published V100 study, by workload"),
        _score("T2", t2, "published V100 study, op by workload"),
    ]


def _score(part: str, pairs: list[tuple[float, float]], used: str) -> Score:
    known, seen = [t for t, _ in pairs], [s for _, s in pairs]
    return Score.of(TOPIC, f"{part} from other workloads (shared)", known, seen, used, exposure=BLIND)


def _traces(folder: Path) -> list[Score]:
    """The host time of whole steps: by the run's other steps or ranks, and by the shipped tables."""
    predicted: dict[str, list[float]] = defaultdict(list)
    measured: dict[str, list[float]] = defaultdict(list)
    names: dict[str, list[str]] = defaultdict(list)
    for scored in scored_runs(folder):
        run = scored.run
        if scored.left_out:
            continue
        step = typical_step(run)
        own, _ = own_platform(run)
        traced = trace_job(run, step, host_times=TRACED).job
        times = {_TABLE: host_time_us(traced, own.overheads)}
        if run.steps > 1 or len(run.ranks) > 1:
            times[INDIVIDUAL] = host_time_us(trace_job(run, step).job)
        recorded = host_time_us(traced)
        for whose, time_us in times.items():
            predicted[whose].append(time_us)
            measured[whose].append(recorded)
            names[whose].append(f"{scored.name} {predicted[whose][-1] / recorded - 1:+.1%}")
    exposures = {INDIVIDUAL: BLIND, _TABLE: FIT}
    return [
        Score.of(
            TOPIC, f"whole step's host time ({whose})", predicted[whose], measured[whose], used,
            note="; ".join(names[whose]), exposure=exposures[whose],
        )
        for whose, used in _WHOSE.items() if predicted[whose]
    ]  # fmt: skip


def host_time_us(job: Job, table: Overheads | None = None) -> float:
    """Host time of the first rank's ops by themselves or by a table; waits for the device do not count."""
    total = 0.0
    for op in job.programs[0].ops:
        launches = len(op.kernels) + (op.collective is not None)
        times = table.of(op.name, launches, with_profiler=True) if table else op.overhead_us
        total += times.total_us(launches) if times else 0.0
    return total
