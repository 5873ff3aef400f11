"""Tensor parallelism: what enters and leaves a group of ranks that share a layer.

Entering copies: the gradient is summed over the group. Leaving sums over the group: the
gradient is copied. A column-parallel layer stands after an entry, a row-parallel one
before an exit.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepsight.program.job import COMM, COMPUTE, Collective, Wait
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import given

GROUP = "tensor"


def enter(tape: Tape, x: Tensor, size: int) -> Tensor:
    """The same values on every rank of the group; their gradients are summed."""
    if size == 1:
        return x
    with tape.op("_CopyToModelParallelRegion", (x,)):
        out = x.alias(x.shape, x.strides)

        def rule(g: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            with tape.suspended_op():
                return (all_reduce(tape, given(g[0])),)

        tape.record("_CopyToModelParallelRegionBackward", (x,), (out,), rule)
    return out


def leave(tape: Tape, x: Tensor, size: int) -> Tensor:
    """Partial results summed over the group."""
    if size == 1:
        return x
    out = all_reduce(tape, x)
    tape.record("_ReduceFromModelParallelRegionBackward", (x,), (out,), lambda g: (g[0],))
    return out


def all_reduce(tape: Tape, x: Tensor, group: str = GROUP) -> Tensor:
    """Summed in place; the compute stream goes on only afterwards."""
    with tape.op("c10d::allreduce_", (x,)):
        tape.call("c10d::allreduce_", (x,))
        collective = Collective("all_reduce", x.bytes, group, dtype=x.dtype, name="activations")
        started = tape.communicate(collective, Wait(COMM, COMPUTE))
    tape.wait_next(Wait(COMPUTE, started))
    return x.alias(x.shape, x.strides)
