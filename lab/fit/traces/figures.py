"""What one run says of the constants that are fitted on traces: one figure each.

Calls of collectives, host times and delays are compared within the run. Counted sizes are compared with
recorded ones: every kernel of a step is sized twice, with its shapes and without, and both are timed by the
same models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec
import numpy as np

from lab.fit.traces.runs import ScoredRun
from stepsight.platform.load import Platform
from stepsight.program.job import Kernel, Sizing
from stepsight.program.observation import Observation
from stepsight.simulate.sustained import sustained
from stepsight.trace.events import NO_RAW, Event
from stepsight.trace.execution import has_shapes
from stepsight.trace.job import (
    clean_steps,
    collective_calls,
    host_delay_us,
    job_of,
    rank_program,
    typical_step,
)
from stepsight.trace.kineto import KinetoTrace
from stepsight.trace.launches import Launch
from stepsight.trace.link import link
from stepsight.trace.platforms import own_platform
from stepsight.trace.program import StepProgram, gathered, with_individual
from stepsight.trace.run import RankTrace, TraceRun, measured_step_us
from stepsight.trace.steps import find_steps

MOST_STEPS = 4
"""Steps of a run that are compared with its others."""
FEWEST_CALLS = 3
"""Calls of one kind and size below which the shortest says nothing of the others."""
LATE_SHARE = 0.01
"""Delays below this share of the step is noise."""


Launched = tuple[Kernel, Observation]


def run_figures(scored: ScoredRun) -> dict[str, float]:
    """The run's figures by the constant's name; a run says nothing of some."""
    run = scored.run
    found = {**_call_figures(run), **_host_figure(run), **_late_figure(run)}
    if has_shapes(run.ranks[0].linked):
        found |= _counted_figure(run)
    return found


def _call_figures(run: TraceRun) -> dict[str, float]:
    """How calls of one kind and size differ where no rank is waited for: median and 90th percentile."""
    if not 1 < len(run.ranks) == run.world_size:
        return {}
    ratios: list[float] = []
    times: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    for step in clean_steps(run)[:MOST_STEPS]:
        job = job_of(run, {r.rank: rank_program(run, r, step) for r in run.ranks})
        for c, seen in collective_calls(job, 0).values():
            if seen.measured_us:
                times[c.group, c.kind, c.bytes].append(seen.measured_us)
    for same in times.values():
        if len(same) >= FEWEST_CALLS:
            ratios += (np.array(same) / min(same)).tolist()
    if len(ratios) < FEWEST_CALLS:
        return {}
    return {"TYPICAL_CALL": float(np.median(ratios)), "LONGEST_CALL": float(np.quantile(ratios, 0.9))}


def _host_us(program: StepProgram) -> float:
    times = ((t.op.overhead_us, len(t.op.kernels) + bool(t.op.collective)) for t in program.ops)
    return sum(host.total_us(launches) for host, launches in times if host)


def _host_figure(run: TraceRun) -> dict[str, float]:
    """How far a step's host time is from what the run's other steps say."""
    clean = clean_steps(run)[:MOST_STEPS]
    if len(clean) < 3:
        return {}
    rank, errors = run.ranks[0], []
    programs = {s: rank_program(run, rank, s) for s in clean}
    for step, program in programs.items():
        others = gathered(p for s, p in programs.items() if s != step)
        own, expected = _host_us(program), _host_us(with_individual(program, others))
        if own > 0 and expected > 0:
            errors.append(np.log(expected / own))
    return {"INDIVIDUAL_SPREAD": float(np.sqrt(np.mean(np.square(errors))))} if errors else {}


def _late_figure(run: TraceRun) -> dict[str, float]:
    """How far the delay of missing ranks in a step is from what the other steps say."""
    clean = clean_steps(run)[: 2 * MOST_STEPS]
    if not run.missing or len(clean) < 3:
        return {}
    rank = run.ranks[0]
    calls = {}
    for step in clean:
        job = job_of(run, {r.rank: rank_program(run, r, step) for r in run.ranks})
        calls[step] = collective_calls(job, job.job.program_of_rank[rank.rank])
    errors = []
    for step, mine in calls.items():
        own = sum(host_delay_us([mine]).values())
        expected = sum(host_delay_us([c for s, c in calls.items() if s != step]).values())
        if min(own, expected) > LATE_SHARE * measured_step_us(run):
            errors.append(np.log(expected / own))
    return {"LATE_SPREAD": float(np.sqrt(np.mean(np.square(errors))))} if errors else {}


def _counted_figure(run: TraceRun) -> dict[str, float]:
    """ln(time by counted sizes ÷ time by recorded sizes), over kernels that grids and names size."""
    rank, step = run.ranks[0], typical_step(run)
    hidden = _without_shapes(rank)
    blind = TraceRun((hidden,), run.world_size, run.device, run.warnings, run.gpus_on_host, run.memory_gb)
    stated, counted = rank_program(run, rank, step), rank_program(blind, hidden, step)
    own, _ = own_platform(run)
    by_event: dict[tuple[float, str], Launched] = {}
    for traced in stated.ops:
        launched = zip(traced.op.kernels, traced.seen, strict=False)
        for event, kernel in zip(_events(traced.launches), launched, strict=False):
            by_event[event.ts, event.name] = kernel
    pairs: list[tuple[Launched, Launched]] = []
    for traced in counted.ops:
        launched = zip(traced.op.kernels, traced.seen, strict=False)
        for event, found in zip(_events(traced.launches), launched, strict=False):
            known = by_event.get((event.ts, event.name))
            if known is not None and found[0].size_spread > 0 and known[0].sizing is Sizing.STATED:
                pairs.append((known, found))
    if not pairs:
        return {}
    known_us, counted_us = (float(_model_us(own, list(side)).sum()) for side in zip(*pairs, strict=True))
    return {"COUNTED_SPREAD": float(np.log(counted_us / known_us))} if min(known_us, counted_us) > 0 else {}


def _model_us(own: Platform, launched: list[Launched]) -> np.typing.NDArray[np.float64]:
    kernels, seen = [kernel for kernel, _ in launched], [o for _, o in launched]
    return np.asarray(sustained(kernels, np.ones(len(kernels)), own, seen).estimates.time_us)


def _events(launches: Iterable[Launch]) -> list[Event]:
    return [event for launch in launches for event in launch.gpu]


def _without_shapes(rank: RankTrace) -> RankTrace:
    """The rank as its trace would be without record_shapes."""
    trace = rank.linked.trace
    shift = rank.linked.clock_shift_us
    ops = [_bare(e) for e in trace.host_ops]
    gpu = [msgspec.structs.replace(e, ts=e.ts - shift) for e in trace.gpu]
    bare = KinetoTrace(
        trace.path, ops, trace.annotations, trace.runtime, gpu, trace.syncs,
        trace.distributed, trace.devices, trace.base_us, trace.memory_gb, trace.device_properties,
    )  # fmt: skip
    linked = link(bare)
    return RankTrace(rank.rank, linked, tuple(find_steps(linked)))


def _bare(event: Event) -> Event:
    args = msgspec.structs.replace(event.args, dims=NO_RAW, old_dims=NO_RAW, types=NO_RAW, concrete=NO_RAW)
    return msgspec.structs.replace(event, args=args)
