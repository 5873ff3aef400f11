"""The whole prediction of a language model's step, with a timeline to look at."""

from __future__ import annotations

from dataclasses import replace

from stepsight.platform.load import Platform
from stepsight.prediction.answer import Prediction
from stepsight.prediction.llm.answer import Quick, answered, naive_us
from stepsight.prediction.llm.compose import Composed, Composer
from stepsight.prediction.llm.figures import figures
from stepsight.prediction.llm.piece_times import StageParts
from stepsight.prediction.memory import MemoryLine
from stepsight.prediction.sensitivity import Sensitivity
from stepsight.prediction.summary import EXPOSED, Coverage, RankSummary, Unmodelled
from stepsight.simulate.price import COMMUNICATION
from stepsight.simulate.timeline import Timeline, simulate
from stepsight.workload.llm.build import build
from stepsight.workload.llm.config import LanguageConfig

MOST_ITEMS = 160
"""Passes (stages × micro-batches × 2) that a timeline shows at most; the figures always hold all of them."""


def predict_language(c: LanguageConfig, platform: Platform, memory: MemoryLine | None) -> Prediction:
    """The step of a language model on a platform, explained."""
    composer = Composer(c, platform)
    found = answered(composer)
    base = found.composed
    timeline, shown = _timeline(c, platform)
    notes = [*c.notes, *(f"{name}: {note}" for name, note in composer.pricer.tally.notes.items())]
    if shown < c.layout.micro_batches:
        notes.insert(0, f"the timeline shows {shown} of {c.layout.micro_batches} micro-batches")
    return Prediction(
        c.name,
        platform.name,
        found.step_us,
        found.low_us,
        found.high_us,
        _ranks(c, base),
        _breakdown(base),
        naive_us(base),
        _sensitivities(composer, found),
        _coverage(composer),
        timeline,
        memory,
        None,
        tuple(notes),
        figures(c, base, platform.spec.gpu),
    )


def _sensitivities(composer: Composer, found: Quick) -> tuple[Sensitivity, ...]:
    """What each category, axis and the host mean for the step that is stated."""
    spreads = {**found.spreads, COMMUNICATION: 0.0}
    parts = [
        Sensitivity(name, composer.step(name, "free").step_us, spread) for name, spread in spreads.items()
    ]
    return tuple(sorted(parts, key=lambda s: s.if_free_us))


def _timeline(c: LanguageConfig, platform: Platform) -> tuple[Timeline, int]:
    """A walk of the step, or of one with fewer micro-batches where it is long."""
    s = c.layout
    most = max(1, MOST_ITEMS // (2 * s.chunks))
    shown = min(s.micro_batches, max(most, s.pipeline))
    if s.virtual_stages > 1:
        shown = -(-shown // s.pipeline) * s.pipeline
    fewer = replace(c, batch_per_rank=c.micro_batch * shown, layout=replace(s, micro_batches=shown))
    return simulate(build(fewer), platform, steps=1), shown


def _ranks(c: LanguageConfig, base: Composed) -> tuple[RankSummary, ...]:
    """Every rank's figures: those of its stage."""
    stride, n = c.layout.stride("pipeline"), c.layout.pipeline
    return tuple(_summary(rank, base.stages[rank // stride % n], base.step_us) for rank in range(c.ranks))


def _summary(rank: int, parts: StageParts, step_us: float) -> RankSummary:
    """A stage's figures; as in a walk, a receive that waits for its sender is exposed communication, and the
    bubble is the part of it that waits for other ranks."""
    compute, exposed = sum(parts.compute.values()), sum(parts.exposed.values())
    waiting = parts.bubble_us
    return RankSummary(
        rank,
        step_us,
        parts.host_us,
        compute + exposed + waiting,
        compute,
        max(sum(parts.communication.values()), exposed) + waiting,
        exposed + waiting,
        waiting,
        parts.host_bound_us,
    )


def _breakdown(base: Composed) -> dict[str, float]:
    """The parts of the step, communication of all axes as one."""
    total: dict[str, float] = {}
    for part, us in base.parts_us().items():
        name = EXPOSED if part.startswith("exposed ") else part
        total[name] = total.get(name, 0.0) + us
    return total


def _coverage(composer: Composer) -> Coverage:
    pricer = composer.pricer
    total = sum(pricer.tally.sources.values()) or 1.0
    shares = {
        s.label: us / total for s, us in sorted(pricer.tally.sources.items(), key=lambda item: -item[1])
    }
    listed = sorted(pricer.tally.unmodelled.items(), key=lambda item: -item[1])[:20]
    return Coverage(shares, tuple(Unmodelled("layer", name, label, us) for (name, label), us in listed))
