"""The traced step that a prediction began with: how long it took, where, and who times its GPU work."""

from __future__ import annotations

from dataclasses import dataclass

from stepsight.program.job import Sizing
from stepsight.program.observation import ObservedJob

_GUESSED = (Sizing.COUNTED, Sizing.GRID)


@dataclass(frozen=True, slots=True)
class TimedBy:
    """Shares of the traced GPU time by who answers for it when the models time the step.

    ``known_sizes``: recorded or spelled out in the kernel's name. ``guessed_sizes``: read off launch grids
    and kernels beside it. ``trace``: nothing tells its sizes, so the trace's own time stands (on another GPU,
    scaled); delays on an idle GPU that no record explains count here.
    """

    known_sizes: float = 0.0
    guessed_sizes: float = 0.0
    trace: float = 0.0

    @classmethod
    def of(cls, job: ObservedJob) -> TimedBy:
        """The shares of a traced job by its measured times."""
        known = guessed = kept = 0.0
        for op, seen in job.ops():
            for kernel, observed in zip(op.kernels, seen, strict=False):
                time_us = observed.measured_us or 0.0
                kept += observed.late_us
                if observed.opaque:
                    kept += time_us
                elif kernel.sizing in _GUESSED or kernel.sizing is Sizing.UNKNOWN:
                    guessed += time_us
                else:
                    known += time_us
            if op.collective is not None:
                if op.collective.size_spread > 0:
                    guessed += seen[-1].measured_us or 0.0
                else:
                    known += seen[-1].measured_us or 0.0
        total = known + guessed + kept
        return cls(known / total, guessed / total, kept / total) if total > 0 else cls()

    def words(self) -> str:
        """The shares in a sentence."""
        return (
            f"{100 * self.known_sizes:.0f} % of the traced GPU time is timed by models with known sizes,"
            f" {100 * self.guessed_sizes:.0f} % with guessed sizes,"
            f" {100 * self.trace:.0f} % by the trace's own durations"
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """What the trace measured: the step's time and the machine it was measured on."""

    step_us: float
    platform: str
    timed_by: TimedBy | None = None
