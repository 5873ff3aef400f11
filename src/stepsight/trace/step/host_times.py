"""Host overheads for a traced step: gathered from other steps or ranks, or a shared table's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stepsight.overheads.gather import Gathered, HostSample
from stepsight.overheads.tables import Overheads
from stepsight.program.job import HostTimes, Op
from stepsight.trace.linking.link import link
from stepsight.trace.reading.kineto import KinetoTrace
from stepsight.trace.sizing.calls import Calls
from stepsight.trace.step.program import StepProgram, TracedOp, step_program
from stepsight.trace.step.steps import find_steps, host_units
from stepsight.trace.step.waits import WaitResolver


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a step an op stands: after which op, and which of the same pairs it is, as "2/3"."""

    name: str
    launches: int
    before: str
    of: str


def trace_samples(trace: KinetoTrace) -> list[HostSample]:
    """Every op of every step of one rank's trace."""
    linked = link(trace)
    calls, units, resolver = Calls(linked), host_units(linked), WaitResolver(linked)
    programs = (step_program(calls, units, step, resolver, trace.world_size) for step in find_steps(linked))
    return [sample for program in programs for sample in samples_of(program)]


def samples_of(program: StepProgram) -> list[HostSample]:
    """Every op of a traced step as a host sample."""
    samples: list[HostSample] = []
    for traced, place in zip(program.ops, places_of(program), strict=True):
        times = traced.op.overhead_us
        if times is None:
            continue
        call = traced.launches[0].call.name if traced.launches else ""
        recorded = max(traced.unit.inner_ops, 1)
        samples.append(
            HostSample(
                place.name, place.before, place.launches, times, recorded, call, place.of, traced.allocating
            )
        )
    return samples


def places_of(program: StepProgram) -> list[Place]:
    """The place of every op."""
    befores = ["", *(t.op.name for t in program.ops[:-1])] if program.ops else []
    pairs = [(b, t.op.name, _launches(t.op)) for b, t in zip(befores, program.ops, strict=True)]
    total = Counter(pairs)
    seen: Counter[tuple[str, str, int]] = Counter()
    places = []
    for pair in pairs:
        seen[pair] += 1
        before, name, launches = pair
        places.append(Place(name, launches, before, f"{seen[pair]}/{total[pair]}"))
    return places


def gathered(programs: Iterable[StepProgram]) -> Gathered:
    """The host samples of several traced steps."""
    return pooled(samples_of(program) for program in programs)


def pooled(samples: Iterable[list[HostSample]]) -> Gathered:
    """Host samples of several steps or ranks together."""
    result = Gathered()
    for found in samples:
        result.add(found)
    return result


def with_individual(program: StepProgram, others: Gathered, fallback: Overheads | None = None) -> StepProgram:
    """The same ops with host times from other steps or ranks; never from this one.

    An op that the others never saw is answered by ``fallback``, else by the platform.
    """
    ops: list[TracedOp] = []
    for traced, at in zip(program.ops, places_of(program), strict=True):
        op = traced.op
        times = others.individual(at.name, at.before, at.launches, at.of) or _shared(op, fallback)
        ops.append(replace(traced, op=replace(op, overhead_us=times)))
    return replace(program, ops=ops)


def with_shared(program: StepProgram, overheads: Overheads) -> StepProgram:
    """The same ops with host times from a table shared by many workloads, the profiler's cost added."""
    ops = [replace(t, op=replace(t.op, overhead_us=_shared(t.op, overheads))) for t in program.ops]
    return replace(program, ops=ops)


def _shared(op: Op, overheads: Overheads | None) -> HostTimes | None:
    return overheads.of(op.name, _launches(op), with_profiler=True) if overheads else None


def _launches(op: Op) -> int:
    return len(op.kernels) + (op.collective is not None)
