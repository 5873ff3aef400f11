"""Host overheads for a traced step: gathered from other steps or ranks, or a shared table's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from stepsight.overheads.gather import Gathered, HostSample
from stepsight.overheads.tables import Overheads
from stepsight.trace.program import StepProgram, TracedOp
from stepsight.workload.program import HostTimes, Op


def samples_of(program: StepProgram) -> list[HostSample]:
    """Every op of a traced step as a host sample."""
    samples: list[HostSample] = []
    for traced, (before, place) in zip(program.ops, _places(program), strict=True):
        op = traced.op
        if op.overhead_us is None:
            continue
        call = traced.launches[0].call.name if traced.launches else ""
        recorded = max(traced.unit.inner_ops, 1)
        samples.append(HostSample(op.name, before, _launches(op), op.overhead_us, recorded, call, place))
    return samples


def _places(program: StepProgram) -> list[tuple[str, str]]:
    """For every op, the op before it and which of the like pairs in the step it is, as "2/3"."""
    befores = ["", *(t.op.name for t in program.ops[:-1])] if program.ops else []
    pairs = [(b, t.op.name, _launches(t.op)) for b, t in zip(befores, program.ops, strict=True)]
    total = Counter(pairs)
    seen: Counter[tuple[str, str, int]] = Counter()
    places = []
    for pair in pairs:
        seen[pair] += 1
        places.append((pair[0], f"{seen[pair]}/{total[pair]}"))
    return places


def gathered(programs: Iterable[StepProgram]) -> Gathered:
    """The host samples of several traced steps."""
    result = Gathered()
    for program in programs:
        result.add(samples_of(program))
    return result


def with_individual(program: StepProgram, others: Gathered, fallback: Overheads | None = None) -> StepProgram:
    """The same ops with host times from other steps or ranks; never from this one.

    An op that the others never saw is answered by ``fallback``, else by the platform.
    """
    ops: list[TracedOp] = []
    for traced, (before, place) in zip(program.ops, _places(program), strict=True):
        op = traced.op
        times = others.individual(op.name, before, _launches(op), place) or _shared(op, fallback)
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
