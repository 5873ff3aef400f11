"""Every training run of a folder: measured, replayed, anchored, and predicted by the models alone.

A run is scored twice: with all rules, and without those that rest on too few sources when its own is left
out (`trace.rules`). What no model can know (kernels without sizes) keeps the trace's time; how much of the
GPU's time that is stands beside the error, and the error with guessed sizes in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stepsight.prediction.traced.predict import predict_trace, simulate_trace
from stepsight.trace.rules import RULES
from stepsight.trace.step.caveats import opaque_share
from stepsight.trace.step.job import rank_program, typical_step
from stepsight.trace.step.run import RankTrace, TraceRun
from stepsight.validate.traces.runs import ScoredRun, scored_runs

OPAQUE = "opaque_kernels"


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run; times in ms.

    ``models_ms`` is predicted by the models with every rule, ``left_out_ms`` without the rules that
    the run's own source carries (``rules_off``), ``guessed_ms`` with guessed sizes where the sizes of
    kernels are not known; ``kept_share`` is the share of the GPU's time that keeps the trace's times.
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
    kept_share: float
    rules_off: tuple[str, ...] = ()
    not_scored: str = ""

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the predicted interval."""
        return self.low_ms <= self.measured_ms <= self.high_ms

    def error(self, part: str) -> float:
        """The relative error of one of the predictions."""
        return float(getattr(self, f"{part}_ms")) / self.measured_ms - 1

    def line(self) -> str:
        """The row in words."""
        parts = ("replay", "anchored", "models", "left_out", "guessed")
        said = ", ".join(f"{part.replace('_', ' ')} {self.error(part):+.1%}" for part in parts)
        kept = f", {self.kept_share:.0%} of GPU time kept" if self.kept_share > 0.005 else ""
        left = f" (not scored: {self.not_scored})" if self.not_scored else ""
        return f"{self.name} {self.measured_ms:.2f} ms: {said}{kept}{left}"

    def document(self) -> dict[str, object]:
        """The row with the field names of the other tables of steps."""
        return {**msgspec.to_builtins(self), "predicted_ms": self.left_out_ms, "inside": self.inside}


def rows(folder: Path, without: Iterable[str] = ()) -> Iterator[RunRow]:
    """Every run under a folder of traces, scored without the rules named."""
    with RULES.without(without):
        for scored in scored_runs(folder):
            yield row_of(scored)


def row_of(scored: ScoredRun) -> RunRow:
    """Score one run."""
    run = scored.run
    replay = simulate_trace(run, replay=True)
    anchored = simulate_trace(run, models_only=False)
    models = predict_trace(run, models_only=True)
    kept = max(opaque_share(rank_program(run, r, typical_step(run))) for r in run.ranks)
    off = tuple(RULES.resting_on(scored.host))
    left_out = _models_us(run, off) if off else models.step_us
    guessed = _models_us(run, (OPAQUE,)) if kept > 0 else models.step_us
    return RunRow(
        scored.name, scored.kind, scored.host, scored.measured_us / 1e3, replay.step_us / 1e3,
        anchored.step_us / 1e3, models.step_us / 1e3, left_out / 1e3, guessed / 1e3, models.low_us / 1e3,
        models.high_us / 1e3, kept, off, scored.left_out,
    )  # fmt: skip


def _models_us(run: TraceRun, off: Iterable[str]) -> float:
    """The step by the models without some rules: what was worked out with them is worked out again."""
    with RULES.without(off):
        ranks = tuple(RankTrace(r.rank, r.linked, r.steps) for r in run.ranks)
        again = TraceRun(ranks, run.world_size, run.device, run.warnings, run.gpus_on_host, run.memory_gb)
        return simulate_trace(again).step_us
