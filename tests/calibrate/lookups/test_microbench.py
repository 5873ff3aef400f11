"""Measuring lookups with torch, and keeping what was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepsight.calibrate.lookups.microbench import (
    BATCH,
    MOST_LOOKED_UP,
    LookupSample,
    measure_lookups,
    random_lookups,
    read_samples,
    write_samples,
)
from stepsight.errors import InputError
from stepsight.tables.indices.distributions import IndexDistribution, draw_indices
from stepsight.tables.lookup import Lookup, TableLookup

SMALL = Lookup(
    (
        TableLookup(100, 8, 16, 2.5, IndexDistribution.zipf(1.1)),
        TableLookup(50, 4, 16, 1.0, IndexDistribution.hot(0.1, 0.9)),
    )
)


def test_every_phase_and_table_is_timed_in_every_repeat() -> None:
    pytest.importorskip("torch")
    (sample,) = measure_lookups([SMALL], repeats=2)
    assert sample.times_us.shape == (1, 2, 2, 2)
    assert np.all(sample.times_us > 0)
    np.testing.assert_allclose(sample.total_us(), sample.call_us().sum(axis=1))


def test_a_lookup_takes_its_least_repeat_and_the_mean_of_its_passes() -> None:
    forward, backward = [[[5.0, 1.0]], [[3.0, 2.0]]], [[[9.0, 9.0]], [[8.0, 8.0]]]
    passes = [[f + b for f, b in zip(forward, backward, strict=True)]] * 2
    passes[1] = [[[7.0, 1.0], [8.0, 8.0]]] * 2
    sample = LookupSample(SMALL, np.array(passes))
    np.testing.assert_allclose(sample.call_us(), [[5.0, 1.0], [8.0, 8.0]])
    np.testing.assert_allclose(sample.of_pass(1).total_us(), [8.0, 16.0])


def test_a_file_keeps_samples_and_caches(tmp_path: Path) -> None:
    sample = LookupSample(SMALL, np.arange(16.0).reshape(2, 2, 2, 2))
    write_samples(tmp_path / "x.json", [sample], (1e4, 1e6))
    (again,), caches = read_samples(tmp_path / "x.json")
    assert again.lookup == SMALL
    assert caches == (1e4, 1e6)
    np.testing.assert_array_equal(again.times_us, sample.times_us)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(InputError, match="not a file of measured lookups"):
        read_samples(tmp_path / "x.json")
    with pytest.raises(InputError, match=r"(?i)no such file"):
        read_samples(tmp_path / "y.json")


def test_random_lookups_cover_the_ranges_within_their_limits() -> None:
    lookups = random_lookups(40, 2, seed=3)
    assert len(lookups) == 80
    counts = [len(x.tables) for x in lookups]
    assert min(counts) <= 2 and max(counts) > 15
    assert all(BATCH[0] <= x.tables[0].batch <= BATCH[1] for x in lookups)
    assert all(sum(t.lookups * t.dim for t in x.tables) <= MOST_LOOKED_UP for x in lookups)
    assert lookups == random_lookups(40, 2, seed=3)


@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
def test_drawn_rows_lie_in_the_table(rows: int) -> None:
    drawn = draw_indices(IndexDistribution.zipf(1.2), rows, 500, np.random.default_rng(0))
    assert drawn.min() >= 0 and drawn.max() < rows
