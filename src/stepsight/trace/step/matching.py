"""Collectives that do not match between the ranks of their group.

A rank may have been recorded longer than another, or a group may not be what the trace suggests. Such
collectives cannot meet: each rank keeps the time its kernel took, waiting included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stepsight.program.job import Group, Kernel, Op, Sizing
from stepsight.program.observation import OpObservations, of_collective, with_collective
from stepsight.trace.step.program import StepProgram


def unmatched(
    programs: Mapping[int, StepProgram], groups: Mapping[str, tuple[Group, ...]]
) -> dict[str, tuple[int, ...]]:
    """Groups whose recorded ranks call different collectives, with those ranks."""
    kinds: dict[str, dict[int, list[str]]] = {}
    for rank, program in programs.items():
        for traced in program.ops:
            c = traced.op.collective
            if c is not None:
                kinds.setdefault(c.group, {}).setdefault(rank, []).append(c.kind)
    found: dict[str, tuple[int, ...]] = {}
    for name, sets in groups.items():
        for members in sets:
            recorded = [r for r in members.ranks if r in programs]
            called = [kinds.get(name, {}).get(r, []) for r in recorded]
            if any(calls != called[0] for calls in called):
                found[name] = (*found.get(name, ()), *recorded)
    return found


def by_itself(op: Op, seen: OpObservations) -> tuple[Op, OpObservations]:
    """The op with its collective as a kernel of known time on the collective's stream."""
    c = op.collective
    if c is None:
        return op, seen
    kernel = Kernel.of(
        "elementwise", c.dtype, operator=c.kind, stream=c.stream, sizing=Sizing.UNKNOWN, elements=1.0,
        read_bytes=c.bytes, write_bytes=c.bytes,
    )  # fmt: skip
    opaque = replace(of_collective(op, seen), opaque=True)
    return replace(op, collective=None, kernels=(*op.kernels, kernel)), with_collective(seen, opaque)
