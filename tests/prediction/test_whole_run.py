"""Whole runs: days, cost and goodput."""

from __future__ import annotations

import math

import pytest

from stepsight import predict
from stepsight.errors import InputError
from stepsight.prediction.whole_run import RunPlan, best_interval_s, expected_s, whole_run

STEP = predict("llama3-8b", "8xH100-SXM")


def test_tokens_make_steps_and_days() -> None:
    found = whole_run(STEP, RunPlan(tokens=1e9, price_per_gpu_hour=2.0))
    assert STEP.setup is not None and STEP.setup.tokens is not None
    assert found.steps == math.ceil(1e9 / STEP.setup.tokens)
    assert found.seconds.value == pytest.approx(found.steps * STEP.step_time_us / 1e6)
    assert found.cost is not None
    assert found.cost.value == pytest.approx(2.0 * found.gpu_hours.value)
    assert found.days.low < found.days.value < found.days.high
    assert found.goodput == 1.0
    assert STEP.energy is not None and found.energy_kwh is not None
    assert found.energy_kwh.value == pytest.approx(found.steps * STEP.energy.step_wh / 1e3)


@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        (RunPlan(steps=10.5), 11),
        (RunPlan(samples=1000.0), math.ceil(1000 / (STEP.setup.samples or 1))),  # type: ignore[union-attr]
        (RunPlan(epochs=3.0, epoch_samples=1000.0), math.ceil(3000 / (STEP.setup.samples or 1))),  # type: ignore[union-attr]
        (RunPlan(tokens=1.0), 1),
    ],
)
def test_the_last_step_may_train_less(plan: RunPlan, steps: int) -> None:
    assert whole_run(STEP, plan).steps == steps


def test_a_run_shorter_than_the_interval_is_one_stretch() -> None:
    """Worked by hand: M e^(R/M) (e^((T+d)/M) - 1) for one stretch of T with a checkpoint of d at its end."""
    found = whole_run(STEP, RunPlan(steps=100, mtbf_hours=1000.0, checkpoint_seconds=60.0))
    training_s = 100 * STEP.step_time_us / 1e6
    mtbf_s = 3.6e6
    by_hand = mtbf_s * math.exp(300 / mtbf_s) * math.expm1((training_s + 60) / mtbf_s)
    assert found.checkpoint_every_s == pytest.approx(training_s)
    assert found.seconds.value == pytest.approx(by_hand)


def test_a_job_that_fails_faster_than_it_saves_never_ends() -> None:
    with pytest.raises(InputError, match="never end"):
        whole_run(STEP, RunPlan(steps=100, mtbf_hours=1e-4, checkpoint_seconds=600.0))
    with pytest.raises(InputError, match=r"never end: a failure every 36\.00 s leaves goodput below 1 %"):
        whole_run(STEP, RunPlan(steps=100, mtbf_hours=0.01, checkpoint_seconds=30.0))


def test_failures_and_checkpoints_cost_goodput() -> None:
    plan = RunPlan(steps=1e5, mtbf_hours=3.0, checkpoint_seconds=60.0)
    found = whole_run(STEP, plan)
    assert 0.8 < found.goodput < 0.97
    assert found.checkpoint_every_s == pytest.approx(math.sqrt(2 * 60 * 3 * 3600), rel=0.1)


def test_the_best_interval_loses_least() -> None:
    mtbf_s, checkpoint_s = 3 * 3600.0, 60.0
    best = best_interval_s(mtbf_s, checkpoint_s)
    lost = [expected_s(1e6, best * f, mtbf_s, checkpoint_s, 300.0) for f in (0.7, 1.0, 1.4)]
    assert lost[1] == min(lost)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"tokens": 1e9, "steps": 5.0},
        {"tokens": -1.0},
        {"epochs": 2.0},
        {"steps": 5.0, "mtbf_hours": 3.0},
        {"steps": 5.0, "checkpoint_seconds": 60.0},
    ],
)
def test_a_plan_without_sense_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(InputError):
        RunPlan(**given)
