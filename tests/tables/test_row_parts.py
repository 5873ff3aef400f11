import numpy as np
import pytest

from stepsight.tables.indices.distributions import IndexDistribution


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.1])
def test_parts_add_up_to_the_whole(exponent):
    whole = IndexDistribution.zipf(exponent)
    all_rows = whole.stats(100_000, 40_000)
    parts = [whole.part_of(100_000).stats(rows, 0.4 * rows) for rows in (25_000, 75_000)]
    assert sum(p.unique_rows for p in parts) == pytest.approx(all_rows.unique_rows)
    assert sum(p.lookups for p in parts) == pytest.approx(all_rows.lookups)


def test_a_part_has_the_hit_rate_of_the_whole_with_as_much_more_cache():
    whole = IndexDistribution.zipf(1.05)
    part = whole.part_of(80_000).stats(20_000, 10_000)
    cache = np.array([100.0, 1000.0])
    np.testing.assert_allclose(part.hit_rate(cache), whole.stats(80_000, 40_000).hit_rate(4 * cache))


def test_a_uniform_part_is_a_small_uniform_table():
    part = IndexDistribution.uniform().part_of(80_000).stats(20_000, 10_000)
    small = IndexDistribution.uniform().stats(20_000, 10_000)
    assert part.unique_rows == pytest.approx(small.unique_rows, rel=0.01)
    assert part.hit_rate(2000.0) == pytest.approx(small.hit_rate(2000.0), abs=0.01)
