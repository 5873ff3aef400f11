"""A launch: the runtime call and the GPU work it started."""

from __future__ import annotations

from dataclasses import dataclass

from stepsight.trace.reading.events import Event

NO_OP = -1
"""Stands for "in no operator" where an operator's index is expected."""


@dataclass(slots=True)
class Launch:
    """One runtime call that put work on a stream; a graph launch puts many kernels there."""

    call: Event
    gpu: list[Event]
    op: int = NO_OP
    """Index of the innermost operator around the call in `LinkedTrace.ops`."""
