import numpy as np
import pytest

from stepsight.tables.bags import draw_lengths, longest_over_mean, spread_of, traced_spread


def test_bags_that_are_alike_have_no_longest_one():
    assert longest_over_mean(0.0, 4096) == 1.0
    assert longest_over_mean(0.8, 1) == 1.0
    assert spread_of([7, 7, 7]) == 0.0


@pytest.mark.parametrize("bags", [16, 4096])
@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_the_longest_of_drawn_bags_is_the_expected_one(spread, bags):
    rng = np.random.default_rng(1)
    drawn = [np.exp(spread * rng.standard_normal(bags) - spread**2 / 2).max() for _ in range(400)]
    assert longest_over_mean(spread, bags) == pytest.approx(np.mean(drawn), rel=0.06)


def test_more_bags_and_a_wider_spread_never_make_the_longest_shorter():
    grid = [[longest_over_mean(s, n) for n in (1, 2, 16, 512, 65536)] for s in (0.0, 0.2, 0.8, 1.5)]
    assert (np.diff(grid, axis=0) >= 0).all()
    assert (np.diff(grid, axis=1) >= 0).all()


def test_drawn_lengths_have_the_mean_and_the_spread():
    rng = np.random.default_rng(0)
    lengths = draw_lengths(30.0, 0.7, 20_000, rng)
    assert lengths.sum() == 600_000
    assert spread_of(lengths) == pytest.approx(0.7, rel=0.05)
    assert np.ptp(draw_lengths(2.5, 0.0, 100, rng)) == 1


def test_of_a_total_alone_bags_vary_as_counts_do_unless_every_sample_has_as_many():
    assert traced_spread(128 * 12, 128, 3) == 0.0
    counts = np.random.default_rng(0).poisson(5.0, 100_000)
    assert traced_spread(5.0 * 128 * 3 + 1, 128, 3) == pytest.approx(spread_of(counts), rel=0.02)
    assert traced_spread(0, 128, 3) == 0.0
