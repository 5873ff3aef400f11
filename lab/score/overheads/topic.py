"""Host overheads of one workload, told from the others."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import click

from lab.fit.overheads.published import Study
from lab.fit.traces.runs import ScoredRun, scored_runs
from lab.score.traces.shared_hosts import SharedHosts
from stepsight.prediction.traced.jobs import INDIVIDUAL, PACED, SHARED, TRACED, trace_job
from stepsight.program.job import Job
from stepsight.program.observation import ObservedJob
from stepsight.score import BLIND, Score
from stepsight.trace.step.job import rank_program, typical_step
from stepsight.trace.step.pauses import recording_gaps

TOPIC = "overheads"
_BLIND = "other hosts"
_WHOSE = {
    INDIVIDUAL: "from the other steps, or the other ranks",
    SHARED: "from other workloads of the host",
    PACED: "from other hosts, at the pace of the run's other steps or ranks (three numbers)",
    _BLIND: "from other hosts alone",
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
        told = study.typical(without=workload)
        mine = {op: by[workload] for op, by in study.inside.items() if workload in by and op in told}
        t2 += [(stats.t2.mean, mine[op].mean) for op, stats in told.items() if op in mine and stats.t2]
        gaps = [(stats.t1.mean, mine[op].count) for op, stats in told.items() if op in mine and stats.t1]
        t1.append((sum(us * n for us, n in gaps) / sum(n for _, n in gaps), gap.mean))
    return [
        _score("T1", t1, "published V100 study, by workload"),
        _score("T2", t2, "published V100 study, op by workload"),
    ]


def _score(part: str, pairs: list[tuple[float, float]], used: str) -> Score:
    told, seen = [t for t, _ in pairs], [s for _, s in pairs]
    return Score.of(TOPIC, f"{part} from other workloads (shared)", told, seen, used, exposure=BLIND)


def _traces(folder: Path) -> list[Score]:
    runs = [r for r in scored_runs(folder) if not r.left_out]
    hosts = SharedHosts(runs)
    told: dict[str, list[float]] = defaultdict(list)
    seen: dict[str, list[float]] = defaultdict(list)
    names: dict[str, list[str]] = defaultdict(list)
    for scored in runs:
        step = typical_step(scored.run)
        measured = host_time_us(trace_job(scored.run, step, TRACED).job)
        for whose, job in _told_by_others(scored, step, hosts).items():
            # What the profiler did for itself is the run's alone: others cannot tell it.
            truth = measured - (0.0 if whose == INDIVIDUAL else _recording_us(scored, step))
            told[whose].append(host_time_us(job.job))
            seen[whose].append(truth)
            names[whose].append(f"{scored.name} {told[whose][-1] / truth - 1:+.1%}")
    return [
        Score.of(
            TOPIC,
            f"whole step's host time ({w})",
            told[w],
            seen[w],
            _WHOSE[w],
            note="; ".join(names[w]),
            exposure=BLIND,
        )
        for w in _WHOSE
        if told[w]
    ]


def _told_by_others(scored: ScoredRun, step: int, hosts: SharedHosts) -> dict[str, ObservedJob]:
    """The step's job with host times from every source that the run has."""
    run, others, siblings = scored.run, hosts.other_hosts(scored), hosts.same_host(scored)
    found = {PACED: trace_job(run, step, PACED, others), _BLIND: trace_job(run, step, SHARED, others)}
    if siblings is not None:
        found[SHARED] = trace_job(run, step, SHARED, siblings)
    if run.steps > 1 or len(run.ranks) > 1:
        found[INDIVIDUAL] = trace_job(run, step, INDIVIDUAL)
    return found


def _recording_us(scored: ScoredRun, step: int) -> float:
    """Of the first rank, whose host time is scored."""
    rank = scored.run.ranks[0]
    return sum(recording_gaps(rank.linked, rank_program(scored.run, rank, step)).values())


def host_time_us(job: Job) -> float:
    """Host time of the first rank's ops, waits for the device not counted."""
    total = 0.0
    for op in job.programs[0].ops:
        times = op.overhead_us
        if times is None:
            continue
        launches = len(op.kernels) + (op.collective is not None)
        inside = times.t2 + times.t3 + launches * times.t4 + max(launches - 1, 0) * times.t5
        total += times.t1 + (inside if launches else times.t5)
    return total
