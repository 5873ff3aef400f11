"""Hit rates and reuse of named distributions, against an exact LRU cache."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.score.embedding.lru import lru_hit_rate
from stepsight.tables.indices.distributions import IndexDistribution, draw_indices
from stepsight.tables.indices.stats import REUSE_BINS, REUSE_EDGES, poisson_below, reuse_bins

TWO_POINTS = 0.02
ROWS, LOOKUPS = 20_000, 40_000
STREAMS = [
    IndexDistribution.uniform(),
    IndexDistribution.zipf(0.8),
    IndexDistribution.zipf(1.0),
    IndexDistribution.zipf(1.15),
    IndexDistribution.zipf(1.3),
    IndexDistribution.hot(0.01, 0.9),
]
CAPACITIES = (20, 300, 3_000, 15_000, 40_000)


@pytest.mark.parametrize("distribution", STREAMS, ids=lambda d: d.label)
@pytest.mark.parametrize("replay", [False, True], ids=["cold", "replay"])
def test_hit_rate_is_within_two_points_of_an_exact_lru(distribution: IndexDistribution, replay: bool) -> None:
    stream = draw_indices(distribution, ROWS, LOOKUPS, np.random.default_rng(3)).tolist()
    exact = [lru_hit_rate(stream, capacity, replay=replay) for capacity in CAPACITIES]
    estimate = distribution.stats(ROWS, LOOKUPS).hit_rate(CAPACITIES, replay=replay)
    np.testing.assert_allclose(estimate, exact, atol=TWO_POINTS)


@pytest.mark.parametrize("distribution", STREAMS, ids=lambda d: d.label)
def test_unique_rows_and_reuse_bins_are_those_of_a_drawn_batch(distribution: IndexDistribution) -> None:
    stream = draw_indices(distribution, ROWS, LOOKUPS, np.random.default_rng(4))
    occurrences = np.unique(stream, return_counts=True)[1]
    stats = distribution.stats(ROWS, LOOKUPS)
    assert stats.unique_rows == pytest.approx(len(occurrences), rel=0.03)
    np.testing.assert_allclose(stats.reuse, reuse_bins(occurrences), atol=0.02)


def test_reuse_bins_are_one_two_three_to_four_five_to_eight_and_so_on() -> None:
    bins = reuse_bins([1, 2, 3, 4, 5, 8, 2**15, 2**15 + 1])
    assert len(bins) == REUSE_BINS
    np.testing.assert_allclose(bins[[0, 1, 2, 3, 15, 16]] * 8, [1, 1, 2, 2, 1, 1])


@given(
    rows=st.integers(1, 10_000_000),
    lookups=st.floats(1, 1e6),
    exponent=st.floats(0, 2),
    capacities=st.lists(st.floats(0, 1e7), min_size=2, max_size=5),
)
def test_a_larger_cache_never_hits_less(
    rows: int, lookups: float, exponent: float, capacities: list[float]
) -> None:
    stats = IndexDistribution.zipf(exponent).stats(rows, lookups)
    hits = stats.hit_rate(sorted(capacities))
    assert np.all(np.diff(hits) >= -1e-12)
    assert np.all((hits >= 0) & (hits <= 1))
    assert stats.unique_rows <= min(rows, lookups) * (1 + 1e-9)
    assert stats.reuse.sum() == pytest.approx(1)


@given(exponents=st.tuples(st.floats(0, 1.6), st.floats(0, 1.6)), capacity=st.floats(1, 1e6))
def test_more_skew_never_hits_less(exponents: tuple[float, float], capacity: float) -> None:
    less, more = (
        IndexDistribution.zipf(e).stats(200_000, 50_000).hit_rate(capacity) for e in sorted(exponents)
    )
    assert more >= less - 1e-3


def test_a_cache_for_the_whole_batch_misses_each_row_once_and_a_replay_never() -> None:
    stats = IndexDistribution.zipf(1.05).stats(1_000_000, 30_000)
    assert float(stats.hit_rate(1e9)) == pytest.approx(1 - stats.unique_rows / 30_000)
    assert float(stats.hit_rate(1e9, replay=True)) == 1.0


def test_occurrences_below_a_count_are_those_of_a_poisson_row() -> None:
    special = pytest.importorskip("scipy.special")
    mean, counts = np.geomspace(1e-6, 1e5, 200), (0, *REUSE_EDGES)
    exact = special.pdtr(np.array(counts)[:, None], mean)
    np.testing.assert_allclose(poisson_below(counts, mean), exact, atol=2e-4)
    few = [i for i, k in enumerate(counts) if k <= 16]
    np.testing.assert_allclose(poisson_below(counts, mean)[few], exact[few], atol=1e-12)


def test_the_hottest_row_occurs_as_often_as_in_a_drawn_batch() -> None:
    distribution = IndexDistribution.zipf(1.1)
    stream = draw_indices(distribution, ROWS, LOOKUPS, np.random.default_rng(5))
    hottest = np.unique(stream, return_counts=True)[1].max()
    assert distribution.stats(ROWS, LOOKUPS).hottest == pytest.approx(hottest, rel=0.05)
    assert IndexDistribution.uniform().stats(10**6, 100).hottest == 1


@pytest.mark.parametrize("distribution", STREAMS, ids=lambda d: d.label)
def test_a_cache_that_sees_a_share_of_the_lookups_hits_as_one_with_so_few(
    distribution: IndexDistribution,
) -> None:
    whole, part = distribution.stats(ROWS, LOOKUPS), distribution.stats(ROWS, LOOKUPS / 40)
    for capacity in CAPACITIES:
        alone = float(part.hit_rate(capacity))
        assert whole.share_hit_rate(capacity, LOOKUPS / 40) == pytest.approx(alone, abs=TWO_POINTS)
