"""Fits of constants on whole steps, with groups left out."""

from __future__ import annotations

import numpy as np
import pytest

from lab.fit.llm import GRIDS, Fit, Surface, reaches
from stepsight.overheads.frameworks import profile_of

EVERY = np.ones(12, dtype=bool)


def rows(host: float = 1.6, products: float = 1.12) -> list[Surface]:
    """Steps of which some are the host's, some the products'; these factors would predict them exactly."""
    made = []
    for i in range(12):
        share = i / 11
        h, p, _ = np.meshgrid(*GRIDS, indexing="ij")
        truth = share * host + (1 - share) * products
        ratio = np.log((share * h + (1 - share) * p) / truth)
        keys = ("megatron", "hopper", "")
        made.append(Surface(f"group {i % 4}", "a", keys, ratio, "megatron", 0.05))
    return made


def test_a_fit_finds_the_constants_that_made_the_rows() -> None:
    fit = Fit(rows())
    found = fit.constants(fit.at(EVERY))
    assert found.host_us["megatron"] == pytest.approx(1.6 * profile_of("megatron").forward_us, rel=0.1)
    assert found.clock["hopper"] == pytest.approx(1 / 1.12, rel=0.03)
    assert np.abs(fit.residuals(fit.at(EVERY))).max() < 0.03


def test_a_group_that_is_left_out_does_not_move_its_own_constants() -> None:
    spoiled = [
        Surface(s.group, s.source, s.keys, s.log_ratio + (s.group == "group 0"), s.kind, s.spread)
        for s in rows()
    ]
    fit, clean = Fit(spoiled), Fit(rows())
    (less,) = fit.without(fit.groups, ["group 0"]).values()
    (same,) = clean.without(clean.groups, ["group 0"]).values()
    np.testing.assert_allclose(less[0], same[0])
    assert np.abs(fit.residuals(less)[fit.groups == "group 0"]).min() > 0.9


def test_what_no_row_tells_is_unknown() -> None:
    fit = Fit(rows())
    assert np.isnan(fit.at(np.zeros(12, dtype=bool))[0]).all()


def test_the_reach_of_a_class_holds_nine_tenths_of_its_rows() -> None:
    made = rows() * 10
    residuals = np.random.default_rng(0).normal(0.0, 0.1, len(made))
    reach = reaches(made, residuals)["megatron"]
    assert (np.abs(residuals) <= 1.645 * reach * made[0].spread).mean() == pytest.approx(0.9, abs=0.03)
