"""Pooling runs into the catalogue's curves, and learning what doubling a group does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from lab.fit.collectives.catalogue import POSITIONS, DoublingSample, Run, fit_catalogue, fit_doubling, pool
from stepsight.collectives.curve import Curve
from stepsight.collectives.measured import catalogue_from_record, load_catalogue

SIZES = 2.0 ** np.arange(8, 28)


def run(scale: float, source: str, forced: bool = False) -> Run:
    return Run(Curve.fit(SIZES, scale * (10 + SIZES / 1e5)), source, forced)


def test_sources_are_pooled_by_their_median_whatever_their_number_of_runs():
    pooled = pool([run(1, "a"), run(1, "a"), run(1, "a"), run(2, "b"), run(3, "c")])
    assert pooled is not None
    assert pooled.curve.time_us(2.0**20) == pytest.approx(2 * (10 + 2**20 / 1e5), rel=1e-3)


def test_a_pinned_algorithm_counts_only_alone():
    free, pinned = run(1, "a"), run(9, "b", forced=True)
    both, alone = pool([free, pinned]), pool([pinned])
    assert both is not None and alone is not None
    assert not both.forced and alone.forced
    assert both.curve.time_us(2.0**20) < alone.curve.time_us(2.0**20)


def test_nothing_pools_to_nothing():
    assert pool([]) is None


def test_doubling_is_learned_by_place_on_the_curve_with_every_machine_counting_alike():
    def sample(machine: str, ratio: float) -> DoublingSample:
        return DoublingSample(machine, "all_reduce", 4, POSITIONS, np.full(len(POSITIONS), ratio))

    learned = fit_doubling([sample("a", 0.5), sample("b", 0.5), sample("odd", 3.0)])
    np.testing.assert_allclose(learned, 0.5, atol=0.05)


def test_the_shipped_catalogue_names_its_sources():
    catalogue = load_catalogue()
    assert len(catalogue.systems) > 30
    assert all(system.provenance and system.curves for system in catalogue.systems)


@pytest.mark.data
def test_refitting_gives_the_shipped_catalogue(measured_data: Path):
    if importlib.util.find_spec("aiconfigurator_core") is None:
        pytest.skip("aiconfigurator-core is not installed")
    refitted = catalogue_from_record(fit_catalogue(measured_data))
    for ours, shipped in zip(refitted.systems, load_catalogue().systems, strict=True):
        assert ours.name == shipped.name and ours.curves.keys() == shipped.curves.keys()
        for key, curve in ours.curves.items():
            np.testing.assert_allclose(curve.times_us, shipped.curves[key].times_us, rtol=1e-3)
