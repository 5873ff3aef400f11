"""Exact statistics of a stream of lookups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.score.embedding.lru import lru_hit_rate
from stepsight.tables.indices import reuse
from stepsight.tables.indices.distributions import IndexDistribution, draw_indices
from stepsight.tables.indices.reuse import exact_stats

CAPACITIES = (10, 100, 1_000, 6_000, 50_000)


def drifting_stream(rng: np.random.Generator) -> np.ndarray:
    """Interest wanders over the table: strong reuse in time that no popularity shows."""
    return (np.arange(30_000) // 3 + rng.integers(0, 800, 30_000)).astype(np.int64)


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("kind", ["zipf", "drifting"])
def test_hit_rate_of_a_real_stream_is_within_two_points_of_lru(kind: str, replay: bool) -> None:
    rng = np.random.default_rng(1)
    stream = (
        drifting_stream(rng)
        if kind == "drifting"
        else draw_indices(IndexDistribution.zipf(1.1), 9_000, 30_000, rng)
    )
    stats = exact_stats(lambda: [stream], len(stream))
    exact = [lru_hit_rate(stream.tolist(), c, replay=replay) for c in CAPACITIES]
    np.testing.assert_allclose(stats.hit_rate(CAPACITIES, replay=replay), exact, atol=0.02)


@given(st.lists(st.integers(-3, 12), min_size=1, max_size=60), st.integers(1, 7))
@settings(max_examples=60)
def test_counts_do_not_depend_on_how_the_stream_is_cut(rows: list[int], piece: int) -> None:
    stream = np.array(rows, dtype=np.int64)
    stats = exact_stats(lambda: (stream[i : i + piece] for i in range(0, len(stream), piece)), len(stream))
    assert stats.unique_rows == len(set(rows))
    assert float(stats.hit_rate(1e9)) == pytest.approx(1 - len(set(rows)) / len(rows))


def test_many_passes_and_merges_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = draw_indices(IndexDistribution.zipf(0.9), 5_000, 20_000, np.random.default_rng(2))
    whole = exact_stats(lambda: [stream], len(stream))
    monkeypatch.setattr(reuse, "LOOKUPS_PER_PASS", 3_000)
    monkeypatch.setattr(reuse, "_MERGE_AT", 500)
    parts = exact_stats(lambda: np.array_split(stream, 37), len(stream))
    np.testing.assert_allclose(parts.cold_hits, whole.cold_hits)
    np.testing.assert_allclose(parts.capacity_rows, whole.capacity_rows)
    np.testing.assert_allclose(parts.reuse, whole.reuse)


def test_relabelling_rows_changes_nothing() -> None:
    stream = draw_indices(IndexDistribution.zipf(1.0), 3_000, 10_000, np.random.default_rng(5))
    label = np.random.default_rng(6).permutation(3_000)
    one, other = exact_stats(lambda: [stream], 10_000), exact_stats(lambda: [label[stream]], 10_000)
    np.testing.assert_array_equal(one.capacity_rows, other.capacity_rows)
    np.testing.assert_array_equal(one.reuse, other.reuse)
