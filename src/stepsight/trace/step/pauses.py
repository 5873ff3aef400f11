"""Gaps before operators that are not their own: sleeps of the program, and what the profiler does.

A sleep shows as a long gap before the same operator of every step, always of the same length; stalls and data
loaders never repeat that exactly. The profiler itself works before a launch whose arguments it cannot record:

With ``record_shapes`` torch turns every argument of a Triton launch into a value it can keep.
A tensor or a number takes a µs. Of any other object (a tensor descriptor, say) it tries to
compile the class, reading and parsing its source in Python, at every launch: 0.4 ms an object
(`scripts/recording_cost.py`; torch 2.13, AMD EPYC). The time lies in the gap before the launch
(T1), and no step has it that is not profiled with shapes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event
from stepsight.trace.rules import RULES
from stepsight.trace.step.host_times import Place, places_of
from stepsight.trace.step.program import StepProgram

MUCH_RECORDING = RULES.value("much_recording")
_TRITON = "triton"
_NO_TENSOR = ("", "Scalar")
"""How the profiler names the type of an argument that is no tensor."""


def recording_gaps(linked: LinkedTrace, program: StepProgram) -> dict[Place, float]:
    """The gaps in µs that recording made, by the place of the launch behind them.

    A kernel works on tensors. Where the trace lists the tensors of other Triton launches and
    of this one nothing but numbers, its tensors came inside objects.
    """
    if not any(_is_triton(event) and _has_tensors(event) for event in linked.ops):
        return {}
    found = {}
    for traced, place in zip(program.ops, places_of(program), strict=True):
        times = traced.op.overhead_us
        if not traced.launches or traced.unit.op < 0 or times is None:
            continue
        event = linked.ops[traced.unit.op]
        if _is_triton(event) and not _has_tensors(event):
            found[place] = times.t1
    return found


def _is_triton(event: Event) -> bool:
    return event.args.kernel_backend == _TRITON


def _has_tensors(event: Event) -> bool:
    return any(kind not in _NO_TENSOR for kind in event.types())


SHORTEST_SLEEP_US = RULES.value("shortest_sleep")
_EVEN = RULES.value("even_sleeps")


def sleeps(steps: Sequence[StepProgram]) -> dict[Place, float]:
    """The pauses in µs that every one of a rank's steps makes, by the place of the operator behind them.

    One step alone cannot tell a sleep from a stall.
    """
    gaps: dict[Place, list[float]] = defaultdict(list)
    for step in steps:
        for traced, place in zip(step.ops, places_of(step), strict=True):
            times = traced.op.overhead_us
            if times is not None and times.t1 >= SHORTEST_SLEEP_US:
                gaps[place].append(times.t1)
    return {
        place: min(found)
        for place, found in gaps.items()
        if len(found) == len(steps) > 1 and max(found) <= (1 + _EVEN) * min(found)
    }
