"""CUDA graphs: a captured part of the step is launched once and costs its host nothing inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepsight.errors import StepsightError
from stepsight.program.job import HOST, HostTimes, Op

GRAPH_LAUNCH = "cudaGraphLaunch"
INSIDE = HostTimes(0.0, 0.0, 0.0, 0.0, 0.0)
"""An operator that a graph replays: the host does not run it."""


def captured(ops: Sequence[Op], first: int, last: int) -> tuple[Op, ...]:
    """The program with ``ops[first:last]`` replayed by one launch, which stands in the first one's place."""
    if first >= last:
        return tuple(ops)
    for op in ops[first:last]:
        if op.blocks_host or any(wait.waiter == HOST for wait in op.waits):
            raise StepsightError(f"{op.name} makes the host wait and cannot be captured in a CUDA graph")
    launch = replace(ops[first], name=GRAPH_LAUNCH)
    return (
        *ops[:first], launch, *(replace(op, overhead_us=INSIDE) for op in ops[first + 1 : last]), *ops[last:]
    )  # fmt: skip


def captured_step(ops: Sequence[Op]) -> tuple[Op, ...]:
    """All from the last copy of the inputs to the optimizer in one graph."""
    copies = [i for i, op in enumerate(ops) if op.kernels and all(k.family == "copy_h2d" for k in op.kernels)]
    first = copies[-1] + 1 if copies else 0
    last = max((i for i, op in enumerate(ops) if op.kernels or op.collective), default=-1) + 1
    return captured(ops, first, last)
