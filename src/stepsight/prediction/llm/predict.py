"""The whole prediction of a language model's step: its walk, explained in the field's words."""

from __future__ import annotations

from dataclasses import replace

from stepsight.platform.load import Platform
from stepsight.prediction.answer import Prediction, explain
from stepsight.prediction.breakdown import RankSummary
from stepsight.prediction.llm.answer import LanguageStep, interval_factor
from stepsight.prediction.llm.figures import figures
from stepsight.prediction.memory import MemoryLine
from stepsight.program.setup import Setup
from stepsight.simulate.price import price
from stepsight.simulate.timeline import Timeline, run
from stepsight.workload.llm.build import build
from stepsight.workload.llm.config import LanguageConfig

FEWEST_BLOCKS, MOST_BLOCKS = 3, 48
"""Micro-batches of a pipeline's steady part that are walked at first, and at most; twice as many each
time that the step still changes by more than `SAME_STEP`."""
SAME_STEP = 2e-3
MOST_OPERATORS = 20_000
"""A longer program is not made longer still."""


def predict_language(
    c: LanguageConfig, platform: Platform, memory: MemoryLine | None, setup: Setup | None = None
) -> Prediction:
    """The step of a language model on a platform, explained."""
    timeline = walk_language(c, platform)
    sensitive = LanguageStep(c, platform).sensitivities(timeline.step_us)
    factor = interval_factor(c, (s.step_spread for s in sensitive))
    scale = c.ranks / timeline.priced.job.ranks
    dynamic_j = timeline.priced.dynamic_j
    timeline = replace(timeline, priced=replace(timeline.priced, dynamic_j=dynamic_j and scale * dynamic_j))
    found = explain(timeline, platform, sensitive=sensitive, interval_factor=factor)
    return replace(
        found, workload=c.name, memory=memory, setup=setup, ranks=_ranks(c, found.ranks),
        language=figures(c, timeline, platform.spec.gpu),
        notes=(*left_out(timeline), *c.notes, *found.notes),
    )  # fmt: skip


def walk_language(c: LanguageConfig, platform: Platform, *, blocks: int = FEWEST_BLOCKS) -> Timeline:
    """The walk of a step; micro-batches that repeat the one before are continued by their period."""
    before = 0.0
    while True:
        job = build(c, blocks)
        found = run(price(job, platform), platform)
        same = abs(found.step_us - before) <= SAME_STEP * found.step_us
        long = sum(map(len, job.programs)) > MOST_OPERATORS
        if found.even or job.whole or same or long or blocks >= MOST_BLOCKS:
            return found
        blocks, before = 2 * blocks, found.step_us


def left_out(timeline: Timeline) -> tuple[str, ...]:
    """A note where the timeline leaves out micro-batches; all figures hold them."""
    skipped = timeline.micro_batches_left_out
    if not skipped:
        return ()
    return (
        f"the timeline leaves out {skipped:,} micro-batches that repeat the one before;"
        " all figures hold them",
    )


def _ranks(c: LanguageConfig, stages: tuple[RankSummary, ...]) -> tuple[RankSummary, ...]:
    """Every rank's figures: those of its stage."""
    stride, n = c.layout.stride("pipeline"), c.layout.pipeline
    return tuple(replace(stages[rank // stride % n], rank=rank) for rank in range(c.ranks))
