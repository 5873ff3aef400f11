"""Random workloads: seeded, valid, and never shared by calibration and validation."""

from __future__ import annotations

import pytest

from stepsight.calibrate.rehearsal import (
    CALIBRATION,
    HEAVY_POOLING,
    VALIDATION,
    random_dlrm,
    random_transformer,
)  # fmt: skip
from stepsight.workload.files import parse_workload


@pytest.mark.parametrize("seed", range(4))
def test_every_draw_is_a_workload(seed: int) -> None:
    for document in (random_dlrm(2, seed), random_transformer(2, seed, family="gpt2")):
        assert parse_workload(dict(document), document["name"]).job("cpu").ranks == 2


def test_the_same_seed_draws_the_same_workload() -> None:
    assert random_dlrm(2, 7) == random_dlrm(2, 7)
    assert random_transformer(2, 7) == random_transformer(2, 7)


def test_validation_scores_on_other_workloads_than_calibration_saw() -> None:
    for seed in range(20):
        seen, scored = random_dlrm(2, seed, CALIBRATION), random_dlrm(2, seed, VALIDATION)
        assert (seen["dense"], seen["tables"]) != (scored["dense"], scored["tables"])


def test_every_other_dlrm_has_only_heavy_tables() -> None:
    assert all(t["pooling"] >= HEAVY_POOLING for t in random_dlrm(2, 0)["tables"])
    assert all(t["pooling"] <= HEAVY_POOLING for t in random_dlrm(2, 1)["tables"])
