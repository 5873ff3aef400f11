"""Host overheads of traced steps, gathered from other steps or ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stepsight.overheads.gather import Gathered, HostSample
from stepsight.program.job import Op
from stepsight.trace.linking.link import link
from stepsight.trace.reading.kineto import KinetoTrace
from stepsight.trace.sizing.calls import Calls
from stepsight.trace.step.program import StepProgram, step_program
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
        samples.append(HostSample(place.name, place.before, place.launches, times, recorded, call, place.of))
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


def with_individual(program: StepProgram, others: Gathered) -> StepProgram:
    """The same ops with host times from other steps or ranks, never from this one; an op that the others
    never saw is the platform's to time."""
    ops = [
        replace(t, op=replace(t.op, overhead_us=others.individual(at.name, at.before, at.launches, at.of)))
        for t, at in zip(program.ops, places_of(program), strict=True)
    ]
    return replace(program, ops=ops)


def _launches(op: Op) -> int:
    return len(op.kernels) + (op.collective is not None)
