"""A deadline leaves out configurations that are too slow for it."""

from __future__ import annotations

import pytest

from stepsight import predict, tune
from stepsight.errors import InputError

ASKED = {"gpus": [8, 16], "global_batch": 16, "over": ["zero=1,3"], "price_per_gpu_hour": 2.0}


def test_the_cheapest_that_is_in_time() -> None:
    any_time = tune("llama3-8b", "2x8xH100-SXM-400G", objective="cost", **ASKED)
    fastest = max(row.tokens_per_s for row in any_time.rows if row.priced and row.fits)
    in_time = tune(
        "llama3-8b", "2x8xH100-SXM-400G", objective="cost", least_tokens_per_s=0.99 * fastest, **ASKED
    )
    assert in_time.best.tokens_per_s >= 0.99 * fastest
    assert all(row.tokens_per_s >= 0.99 * fastest for row in in_time.rows if row.priced)


def test_a_deadline_that_nothing_meets_is_refused() -> None:
    with pytest.raises(InputError, match="times as long"):
        tune("llama3-8b", "2x8xH100-SXM-400G", least_tokens_per_s=1e9, **ASKED)


def test_the_least_energy_that_is_in_time() -> None:
    found = tune("llama3-8b", "2x8xH100-SXM-400G", objective="energy", **ASKED)
    able = [row for row in found.rows if row.priced and row.fit >= 0.9]
    assert found.best.energy_j is not None
    assert found.best.energy_j <= 1.05 * min(row.energy_j or 1e30 for row in able)
    same = {"global_batch": 16, "training.framework": found.best.framework}
    walked = predict("llama3-8b", "2x8xH100-SXM-400G", set={**found.best.settings, **same})
    assert walked.energy is not None
    assert found.best.energy_j == pytest.approx(walked.energy.step_j, rel=0.02)
