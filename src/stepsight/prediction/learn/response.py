"""How a step's time answers to the parts of a machine: priced once, asked for any factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.platform.evidence import HOST, PARTS, collective_factor, network_weights, part_of
from stepsight.platform.load import Platform
from stepsight.prediction.llm.compose import PIPELINE, Composer, Knobs
from stepsight.program.job import Collective
from stepsight.simulate.engine import Priced
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.price import COMMUNICATION
from stepsight.simulate.timeline import STEADY_STEPS, Timeline, step_times

Factors = Mapping[str, float]
NUDGE = 0.05
"""The change of a factor's logarithm that elasticities are taken over."""


class Response(Protocol):
    """A priced step that can be asked again with other factors."""

    def steps_us(self, factors: Sequence[Factors]) -> FloatArray: ...


@dataclass(frozen=True, slots=True)
class LanguageResponse:
    """A language model's step, composed anew for every question."""

    composer: Composer

    def steps_us(self, factors: Sequence[Factors]) -> FloatArray:
        return np.array([self._step_us(one) for one in factors])

    def _step_us(self, factors: Factors) -> float:
        return self.composer.step(
            knobs=Knobs(host=factors.get(HOST, 1.0), parts=self._scales(factors))
        ).step_us

    def _scales(self, factors: Factors) -> dict[str, float]:
        """By category of kernels and axis of communication."""
        pricer = self.composer.pricer
        node = pricer.platform.spec.gpus_per_node
        scales = {name: factors.get(part_of(name), 1.0) for name in self.composer.names() if name != HOST}
        for axis, ranks in pricer.blocks.spans.items():
            nodes = len({rank // node for rank in ranks})
            scales[axis] = collective_factor(factors, nodes)
        stride = self.composer.s.stride("pipeline")
        scales[PIPELINE] = collective_factor(
            factors, 2 if stride >= node or self.composer.c.ranks > node else 1
        )
        return scales


@dataclass(frozen=True, slots=True)
class JobResponse:
    """A walked job: every question is a configuration of one walk."""

    timeline: Timeline
    platform: Platform
    steps: int = STEADY_STEPS
    recorded: int = 1
    """Steps that the job holds."""

    def steps_us(self, factors: Sequence[Factors]) -> FloatArray:
        priced = self.timeline.priced
        times = [self._scaled(i, factors) for i in range(len(priced.lanes))]
        return step_times(priced, self.platform, times, steps=self.steps) / self.recorded

    def _scaled(self, lane: int, factors: Sequence[Factors]) -> Priced:
        priced, stretched = self.timeline.priced.lanes[lane], self.timeline.stretched[lane]
        device: FloatArray = np.repeat(stretched.device_us, len(factors), axis=1)
        host: FloatArray = np.repeat(stretched.host_us, len(factors), axis=1)
        late = None if stretched.late_us is None else np.repeat(stretched.late_us, len(factors), axis=1)
        alone = np.broadcast_to(priced.times.device_us, stretched.device_us.shape)[:, 0]
        powers = self._powers(lane)
        for c, one in enumerate(factors):
            log = sum(
                (np.log(one.get(part, 1.0)) * powers[:, i] for i, part in enumerate(PARTS)), np.zeros(1)
            )
            device[:, c] += alone * np.expm1(np.broadcast_to(log, alone.shape[:1]))[:, None]
            host[:, c] *= one.get(HOST, 1.0)
        return Priced(host, device, late)

    def _powers(self, lane: int) -> FloatArray:
        """(launches, parts): how each launch's time depends on the parts."""
        priced, job = self.timeline.priced.lanes[lane], self.timeline.priced.job
        node = self.platform.spec.gpus_per_node
        powers = np.zeros((len(priced.category), len(PARTS)))
        items = [item for op in job.programs[int(priced.programs[0])].ops for item in launches_of(op)]
        for i, (name, item) in enumerate(zip(priced.category, items, strict=True)):
            if name != COMMUNICATION or not isinstance(item, Collective):
                powers[i, PARTS.index(part_of(name))] = 1.0
                continue
            sets = job.groups.get(item.group, ())
            ranks = item.spans or (sets[0].ranks if sets else ())
            for part, power in network_weights(len({r // node for r in ranks})).items():
                powers[i, PARTS.index(part)] = power
        return powers


def elasticities(response: Response, at: Factors | None = None) -> tuple[float, FloatArray]:
    """The step's time with factors ``at``, and d ln(step) / d ln(factor) of every part there."""
    base = {part: (at or {}).get(part, 1.0) for part in PARTS}
    up, down = float(np.exp(NUDGE)), float(np.exp(-NUDGE))
    asked = [base]
    for part in PARTS:
        asked += [{**base, part: base[part] * up}, {**base, part: base[part] * down}]
    steps = response.steps_us(asked)
    slopes = np.log(steps[1::2] / steps[2::2]) / (2 * NUDGE)
    return float(steps[0]), slopes
