"""How far predictions by the models are off with a run's own source left out: what intervals are made of."""

from __future__ import annotations

from math import log, sqrt

from lab.fit.traces.left_out import Refits
from lab.fit.traces.runs import ScoredRun
from stepsight.prediction.answer import INTERVAL_SIGMAS, Prediction
from stepsight.prediction.traced.predict import models_spread, predict_step, traced_step
from stepsight.trace.rules import RULES
from stepsight.trace.step.platforms import own_platform
from stepsight.trace.step.run import RankTrace, TraceRun


def left_out_prediction(run: TraceRun, folder: str, refits: Refits) -> Prediction:
    """The run's step by models, constants and rules that never saw its source."""
    with RULES.left_out(folder):
        own, _ = own_platform(run)
        made = traced_step(again(run), models_only=True, machine=refits.platform(own, folder))
        return predict_step(made)


def missing_spread(scored: ScoredRun, refits: Refits) -> float:
    """The least spread, beside those of the step's parts, with which its interval holds the measured step."""
    answer = left_out_prediction(scored.run, scored.host, refits)
    sigma = log(answer.high_us / answer.low_us) / 2 / INTERVAL_SIGMAS
    with RULES.left_out(scored.host):
        parts = sigma**2 - models_spread() ** 2
    needed = (log(scored.measured_us / answer.step_us) / INTERVAL_SIGMAS) ** 2
    return sqrt(max(needed - parts, 0.0))


def again(run: TraceRun) -> TraceRun:
    """The run without what was worked out with other rules."""
    ranks = tuple(RankTrace(r.rank, r.linked, r.steps) for r in run.ranks)
    return TraceRun(ranks, run.world_size, run.device, run.warnings, run.gpus_on_host, run.memory_gb)
