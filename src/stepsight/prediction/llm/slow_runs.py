"""A step on a site where some runs are slow: how likely, how long, and the one figure to state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from stepsight.collectives.stalls import PLAIN, HostState, JobLayout
from stepsight.platform.load import Platform
from stepsight.prediction.llm.compose import Composed, Composer
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.memory import stage_memory, usable_bytes

AHEAD_SHARE, AHEAD_SPREAD = 0.89, 0.06
"""Of a GPU's memory, what a run whose hosts are ahead may be predicted to hold and still be measured, and the
standard deviation of the logarithm of such predictions: of the H100 sweep's pipelines that are predicted to
hold more than 74 GiB, all but one are slow. Of 0.85 to 0.93, the share with the least log loss of left-out
groups."""
TAIL = 0.05
"""The share of runs below a 90 % interval, and above it."""
REACH, HALVINGS = 8.0, 50
"""Standard deviations beyond both states within which a quantile is looked for, and steps to find it."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Mixture:
    """A run that is not slow, one that is, and how likely the second is."""

    usual: Composed
    slow: Composed | None = None
    probability: float = 0.0

    @property
    def stated(self) -> Composed:
        """The state that has the least expected relative error if it is stated for both."""
        if self.slow is None:
            return self.usual
        ratio = self.slow.step_us / self.usual.step_us
        missed, invented = self.probability * abs(1 - 1 / ratio), (1 - self.probability) * abs(ratio - 1)
        return self.slow if invented < missed else self.usual

    @property
    def is_slow(self) -> bool:
        return self.slow is not None and self.stated is self.slow

    @property
    def expected_us(self) -> float:
        """The geometric mean over runs: what a choice between configurations goes by.

        Not the mean: a run that is many times slower than predicted is seen within a few steps and stopped,
        so it does not cost its whole length.
        """
        slow = self.slow.step_us if self.slow is not None else self.usual.step_us
        return float(self.usual.step_us ** (1 - self.probability) * slow**self.probability)

    def interval(self, factor: float) -> tuple[float, float]:
        """90 % of runs, where each state alone lies within ``factor`` in 90 %: its quantiles are those of
        both states together, so that a rare state lies outside."""
        usual_us = self.usual.step_us
        if self.slow is None or self.slow.step_us <= usual_us:
            return usual_us / factor, usual_us * factor
        spread = math.log(factor) / _NORMAL.inv_cdf(1 - TAIL)
        return self._quantile_us(TAIL, spread), self._quantile_us(1 - TAIL, spread)

    def _quantile_us(self, share: float, spread: float) -> float:
        """The time that this share of runs does not exceed, by bisection of its logarithm."""
        usual, slow = math.log(self.usual.step_us), math.log((self.slow or self.usual).step_us)
        low, high = usual - REACH * spread, slow + REACH * spread
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = (1 - self.probability) * _NORMAL.cdf((middle - usual) / max(spread, 1e-9))
            below += self.probability * _NORMAL.cdf((middle - slow) / max(spread, 1e-9))
            low, high = (middle, high) if below < share else (low, middle)
        return math.exp(high)


def mixture(composer: Composer, usual: Composed | None = None, *, measured: bool = False) -> Mixture:
    """The states of a run on the composer's platform; one where its site has no slow ones.

    ``measured``: of a run that is known to have ended, so that a state that does not fit is less likely.
    """
    usual = usual or composer.step()
    platform = composer.pricer.platform
    state = slow_state(composer)
    probability = slow_probability(composer.c, platform, measured=measured)
    if state is None or probability <= 0.0:
        return Mixture(usual)
    return Mixture(usual, composer.step(state=state), probability)


def slow_state(composer: Composer) -> HostState | None:
    """How the hosts of a slow run behave; None where they behave as those of all others."""
    platform, s = composer.pricer.platform, composer.s
    stalls = platform.site.stalls if platform.site else None
    if stalls is None or not (s.tensor > 1 or s.pipeline > 1) or s.schedule != "1f1b":
        return None
    state = stalls.slow(composer.nodes, s.pipeline)
    return state if state != composer.usual else None


def possible_states(composer: Composer) -> tuple[HostState, ...]:
    """The states that runs of the composer's site were in; one where it has no slow ones."""
    slow = slow_state(composer)
    return (composer.usual,) if slow is None else tuple(dict.fromkeys((composer.usual, slow, PLAIN)))


def slow_probability(c: LanguageConfig, platform: Platform, *, measured: bool = False) -> float:
    """How likely a run of a configuration is slow on the platform's site."""
    stalls = platform.site.stalls if platform.site else None
    if stalls is None:
        return 0.0
    layout = job_layout(c, platform)
    return stalls.measured_probability(layout) if measured else stalls.probability(layout)


def job_layout(c: LanguageConfig, platform: Platform) -> JobLayout:
    """What the share of slow runs depends on, of a configuration on a platform."""
    gpu, per_node = platform.spec.gpu, platform.spec.gpus_per_node
    nodes, wide = -(-c.ranks // per_node), -(-c.layout.tensor // per_node)
    held = max(m.reserved for m in stage_memory(c))
    finds_room = c.layout.pipeline == 1 and held > usable_bytes(gpu.memory_gb)  # again and again: `RETRIED`
    return JobLayout(
        nodes,
        wide,
        c.layout.pipeline,
        c.layout.data,
        overfull=0.0 if finds_room else _overfull(held / (gpu.memory_gb * 2**30)),
        whole_gradients=c.layout.micro_batches if c.layout.data > 1 and not c.layout.zero else 0,
        micro_batch=c.micro_batch,
        parameters=c.model.parameters(),
    )


def _overfull(share: float) -> float:
    """How likely a run would not fit whose hosts run ahead and hold this share of a GPU's memory."""
    return _NORMAL.cdf(math.log(share / AHEAD_SHARE) / AHEAD_SPREAD)
