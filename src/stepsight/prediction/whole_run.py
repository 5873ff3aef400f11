"""A whole training run: days, GPU-hours, cost, energy, and what failures and checkpoints take of it.

Checkpoints follow Young (1974) and Daly (2006, "A higher order estimate of the optimum checkpoint interval
for restart dumps"): with failures at random, the expected time of a run is M·e^(R/M)·(e^((τ+δ)/M) − 1)·T/τ,
for the job's mean time between failures M, a checkpoint's time δ, a restart's time R, and the interval τ
between checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.prediction.display import time

if TYPE_CHECKING:
    from stepsight.prediction.answer import Prediction

C = area("prediction")

HOUR, DAY = 3600.0, 86400.0
LEAST_GOODPUT, MOST_EXPONENT = 0.01, 100.0
"""Below this share of its time that trains, a run is not one."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How long to train and what happens meanwhile; exactly one of the four lengths.

    ``mtbf_hours`` is the mean time between failures of the whole job; without it nothing fails.
    """

    tokens: float | None = None
    samples: float | None = None
    steps: float | None = None
    epochs: float | None = None
    epoch_samples: float | None = None
    price_per_gpu_hour: float | None = None
    mtbf_hours: float | None = None
    checkpoint_seconds: float | None = None
    restart_seconds: float = C.RESTART_SECONDS

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                option = "price" if name == "price_per_gpu_hour" else name.replace("_", "-")
                raise InputError(f"--{option}", f"is {value:g}", "give a positive number")
        lengths = [n for n in ("tokens", "samples", "steps", "epochs") if getattr(self, n) is not None]
        if len(lengths) != 1:
            given = " and ".join(f"--{n}" for n in lengths) or "a whole run"
            problem = "several lengths of one run" if lengths else "needs its length"
            raise InputError(given, problem, "give one of --tokens, --samples, --steps, --epochs")
        if (self.epochs is None) != (self.epoch_samples is None):
            raise InputError("--epochs", "needs --epoch-samples", "give both, or --samples")
        if self.mtbf_hours is not None and self.checkpoint_seconds is None:
            fix = "give --checkpoint-seconds, the time that training stops for one"
            raise InputError("--mtbf-hours", "needs the time of a checkpoint", fix)
        if self.mtbf_hours is None and self.checkpoint_seconds is not None:
            fix = "give --mtbf-hours, the mean time between failures of the whole job"
            raise InputError("--checkpoint-seconds", "has no effect where nothing fails", fix)

    def steps_of(self, prediction: Prediction) -> int:
        """How many optimizer steps the run has; the last one may train less."""
        if self.steps is not None:
            return math.ceil(self.steps)
        setup = prediction.setup
        if self.tokens is not None:
            per_step, asked, what = setup.tokens if setup else None, self.tokens, "tokens"
        else:
            whole = (
                self.samples if self.samples is not None else (self.epochs or 0) * (self.epoch_samples or 0)
            )
            per_step, asked, what = setup.samples if setup else None, whole, "samples"
        if not per_step:
            raise InputError(f"--{what}", f"this job does not state its {what} per step", "give --steps")
        return math.ceil(asked / per_step)


@dataclass(frozen=True, slots=True)
class Range:
    """A figure with the 90 % interval of the step time it comes from."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class WholeRun:
    """``goodput``: the share of the time that trains; ``checkpoint_every_s``: the interval with the least
    expected time; ``failures``: expected number. ``energy_kwh``: of the GPUs' boards, at their average power
    over a step."""

    steps: int
    gpus: int
    seconds: Range
    goodput: float
    checkpoint_every_s: float | None
    failures: float
    cost: Range | None
    energy_kwh: Range | None

    @property
    def days(self) -> Range:
        return self.seconds.times(1 / DAY)

    @property
    def gpu_hours(self) -> Range:
        return self.seconds.times(self.gpus / HOUR)

    def lines(self) -> list[tuple[str, str, str]]:
        """Name, expected value and 90 % interval of each figure, as tables show them."""
        units = (
            ("", self.seconds, (("days", DAY), ("hours", HOUR), ("minutes", 60.0), ("seconds", 1.0))),
            ("", self.gpu_hours, (("GPU-hours", 1.0),)),
            ("", self.cost, (("cost", 1.0),)),
            ("energy, ", self.energy_kwh, (("MWh", 1e3), ("kWh", 1.0), ("Wh", 1e-3))),
        )
        lines = []
        for start, found, sizes in units:
            if found is None:
                continue
            name, size = next((one for one in sizes if found.value >= one[1]), sizes[-1])
            r = found.times(1 / size)
            form = ",.0f" if r.value >= 100 else ",.2f"
            lines.append(
                (start + name, format(r.value, form), f"{format(r.low, form)}–{format(r.high, form)}")
            )
        return lines

    def failure_words(self) -> str:
        """Goodput, failures and the interval between checkpoints; empty where nothing fails."""
        if not self.checkpoint_every_s:
            return ""
        return (
            f"goodput {100 * self.goodput:.1f} %: {self.failures:,.1f} failures expected; checkpoint every"
            f" {self.checkpoint_every_s / 60:,.0f} min (Young/Daly)"
        )

    def to_dict(self) -> dict[str, Any]:
        ranges = {
            "days": self.days, "gpu_hours": self.gpu_hours, "cost": self.cost, "energy_kwh": self.energy_kwh,
        }  # fmt: skip
        return {
            "steps": self.steps,
            "gpus": self.gpus,
            **{name: asdict(one) for name, one in ranges.items() if one},
            "goodput": self.goodput,
            "failures": self.failures,
            **({"checkpoint_every_s": self.checkpoint_every_s} if self.checkpoint_every_s else {}),
        }


def whole_run(prediction: Prediction, plan: RunPlan) -> WholeRun:
    """The run that a prediction's step makes."""
    steps, gpus = plan.steps_of(prediction), len(prediction.ranks)
    training_s = [steps * us / 1e6 for us in (prediction.step_time_us, prediction.low_us, prediction.high_us)]
    seconds, every_s, failures = Range(*training_s), None, 0.0
    if plan.mtbf_hours is not None:
        mtbf_s, checkpoint_s = plan.mtbf_hours * HOUR, plan.checkpoint_seconds or 0.0
        best_s = best_interval_s(mtbf_s, checkpoint_s)
        every_s = min(best_s, training_s[0])
        seconds = Range(
            *(expected_s(s, min(best_s, s), mtbf_s, checkpoint_s, plan.restart_seconds) for s in training_s)
        )
        failures = seconds.value / mtbf_s
    price = plan.price_per_gpu_hour or prediction.price_per_gpu_hour
    energy = prediction.energy
    return WholeRun(
        steps=steps,
        gpus=gpus,
        seconds=seconds,
        goodput=training_s[0] / seconds.value,
        checkpoint_every_s=every_s,
        failures=failures,
        cost=seconds.times(gpus / HOUR * price) if price else None,
        energy_kwh=seconds.times(gpus * energy.gpu_w / 3.6e6) if energy else None,
    )


def best_interval_s(mtbf_s: float, checkpoint_s: float) -> float:
    """Daly's estimate of the interval between checkpoints that loses the least time."""
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2 * mtbf_s)
    return math.sqrt(2 * checkpoint_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_s


def expected_s(
    training_s: float, interval_s: float, mtbf_s: float, checkpoint_s: float, restart_s: float
) -> float:
    """The expected time of a run with failures at random."""
    exponent, restarts = (interval_s + checkpoint_s) / mtbf_s, restart_s / mtbf_s
    stretched = math.inf
    if exponent + restarts < MOST_EXPONENT:
        stretched = mtbf_s * math.exp(restarts) * math.expm1(exponent) / interval_s
    if stretched > 1 / LEAST_GOODPUT:
        problem = f"the run would never end: a failure every {time(1e6 * mtbf_s)} leaves goodput below"
        fix = "checkpoint and restart faster, or use fewer GPUs"
        raise InputError("--mtbf-hours", f"{problem} {100 * LEAST_GOODPUT:g} %", fix)
    return stretched * training_s
