"""Predict a workload on a platform: the one call that joins all parts."""

from __future__ import annotations

from dataclasses import fields

from stepsight.capture.step.captured import CapturedStep
from stepsight.platform.load import Platform
from stepsight.prediction.answer import MemoryLine, Prediction, explain
from stepsight.prediction.captured import predict_captured
from stepsight.prediction.llm.predict import predict_language
from stepsight.simulate.price import price
from stepsight.simulate.timeline import STEADY_STEPS, run
from stepsight.workload.files import Workload
from stepsight.workload.llm.workload import LanguageWorkload

FEWEST_BLOCKS = 4
"""Micro batches of a pipeline's steady part that are walked at first; twice as many each time that their
clocks do not yet advance evenly."""


def predict(
    workload: Workload | CapturedStep, platform: Platform, *, steps: int = STEADY_STEPS
) -> Prediction:
    """The step time of a workload, or of a captured step, on a platform, explained.

    ``steps=1`` predicts one step from a standing start; by default the steady state, in which
    the host may already launch the next step while the GPU finishes this one.
    """
    platform = platform.with_ranks(workload.ranks)
    if isinstance(workload, CapturedStep):
        return predict_captured(workload, platform, steps=steps)
    memory = _memory(workload, platform)
    if isinstance(workload, LanguageWorkload):
        return predict_language(workload.config, platform, memory)
    device = "cpu" if platform.spec.host.synchronous else "cuda"
    blocks = FEWEST_BLOCKS
    while True:
        job = workload.job(device, blocks)
        priced = price(job, platform)
        timeline = run(priced, platform, steps=steps)
        if timeline.even or job.whole:
            return explain(timeline, platform, workload=workload.name, steps=steps, memory=memory)
        blocks *= 2


def _memory(workload: Workload, platform: Platform) -> MemoryLine:
    """The fullest rank against what its device has."""
    ranks = workload.memory().ranks
    fullest = max(range(len(ranks)), key=lambda r: ranks[r].total)
    parts = {f.name: float(getattr(ranks[fullest], f.name)) for f in fields(ranks[fullest])}
    return MemoryLine(parts, platform.spec.gpu.memory_gb * 1e9, fullest)
