"""Every training run of a folder: measured, replayed, anchored, and predicted by the models alone.

A run is scored twice by the models: as they ship, and with its own source left out of everything that was
fitted or read off traces (`left_out`, `trace.rules`). What no model can know (kernels without sizes) keeps
the trace's time; how much of the GPU's time that is stands beside the error, and the error with guessed
sizes in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lab.fit.traces.left_out import Refits
from lab.fit.traces.residuals import again, left_out_prediction
from lab.fit.traces.runs import ScoredRun, scored_runs
from stepsight.prediction.provenance import TimedBy
from stepsight.prediction.traced.predict import simulate_trace
from stepsight.trace.rules import RULES
from stepsight.trace.step.run import TraceRun

OPAQUE = "opaque_kernels"


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run; times in ms.

    ``models_ms`` is predicted by the models as they ship, ``left_out_ms`` (with its interval) by models,
    constants and rules that never saw the run's source; ``rules_off`` are off then. ``guessed_ms`` has
    guessed sizes where the sizes of kernels are not known. ``timed_by`` are shares of the GPU time.
    """

    name: str
    set: str
    source: str
    measured_ms: float
    replay_ms: float
    anchored_ms: float
    models_ms: float
    left_out_ms: float
    guessed_ms: float
    low_ms: float
    high_ms: float
    timed_by: TimedBy
    rules_off: tuple[str, ...] = ()
    not_scored: str = ""

    @property
    def kept_share(self) -> float:
        """The share of the GPU's time that keeps the trace's times."""
        return self.timed_by.trace

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the interval that was predicted without the run's source."""
        return self.low_ms <= self.measured_ms <= self.high_ms

    def error(self, part: str) -> float:
        """The relative error of one of the predictions."""
        return float(getattr(self, f"{part}_ms")) / self.measured_ms - 1

    def line(self) -> str:
        """The row in words."""
        parts = ("replay", "anchored", "models", "left_out", "guessed")
        said = ", ".join(f"{part.replace('_', ' ')} {self.error(part):+.1%}" for part in parts)
        low, high = (bound / self.measured_ms - 1 for bound in (self.low_ms, self.high_ms))
        shares = (
            f"GPU time {self.timed_by.known_sizes:.0%} known sizes,"
            f" {self.timed_by.guessed_sizes:.0%} guessed, {self.kept_share:.0%} kept"
        )
        left = f" (not scored: {self.not_scored})" if self.not_scored else ""
        off = f"; off: {', '.join(self.rules_off)}" if self.rules_off else ""
        interval = f"interval {low:+.0%} to {high:+.0%}" + ("" if self.inside else " MISSES it")
        return f"{self.name} {self.measured_ms:.2f} ms: {said}, {interval}; {shares}{off}{left}"

    def document(self) -> dict[str, object]:
        """The row with the field names of the other tables of steps."""
        return {
            **msgspec.to_builtins(self), "kept_share": self.kept_share, "predicted_ms": self.left_out_ms,
            "inside": self.inside,
        }  # fmt: skip


def rows(folder: Path, without: Iterable[str] = ()) -> Iterator[RunRow]:
    """Every run under a folder of traces, scored without the rules named."""
    refits = Refits.from_tables()
    with RULES.without(without):
        for scored in scored_runs(folder, single=True):
            yield row_of(scored, refits)


def row_of(scored: ScoredRun, refits: Refits) -> RunRow:
    """Score one run."""
    run = scored.run
    replay = simulate_trace(run, replay=True)
    anchored = simulate_trace(run, models_only=False)
    models = simulate_trace(run, models_only=True)
    left_out = left_out_prediction(run, scored.host, refits)
    timed_by = (left_out.origin.timed_by if left_out.origin else None) or TimedBy()
    guessed = _guessed_us(run) if timed_by.trace > 0 else models.step_us
    return RunRow(
        scored.name, scored.kind, scored.host, scored.measured_us / 1e3, replay.step_us / 1e3,
        anchored.step_us / 1e3, models.step_us / 1e3, left_out.step_us / 1e3, guessed / 1e3,
        left_out.low_us / 1e3, left_out.high_us / 1e3, timed_by, tuple(RULES.resting_on(scored.host)),
        scored.left_out,
    )  # fmt: skip


def _guessed_us(run: TraceRun) -> float:
    with RULES.without((OPAQUE,)):
        return simulate_trace(again(run)).step_us
