"""Curve: what must hold of every curve, and what it makes of noise."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsight.collectives import Curve
from stepsight.errors import StepsightError

SIZES = st.floats(1.0, 1e11)
ROWS = st.lists(st.tuples(SIZES, st.floats(1e-2, 1e9)), min_size=1, max_size=40)


def line(sizes: np.ndarray) -> np.ndarray:
    return 10.0 + sizes / 1e4


@given(ROWS, st.lists(SIZES, min_size=2, max_size=50))
def test_more_bytes_never_take_less_time(rows, wanted):
    curve = Curve.fit(*zip(*rows, strict=True))
    times = curve.time_us(np.sort(wanted))
    assert (np.diff(times) >= -1e-9 * times[1:]).all()
    assert (times > 0).all()


@given(ROWS, st.randoms())
def test_the_order_of_the_rows_does_not_matter(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    a, b = Curve.fit(*zip(*rows, strict=True)), Curve.fit(*zip(*shuffled, strict=True))
    np.testing.assert_array_equal(a.times_us, b.times_us)


@given(ROWS, SIZES)
def test_a_curve_survives_json(rows, size):
    curve = Curve.fit(*zip(*rows, strict=True))
    again = Curve.from_record(json.loads(json.dumps(curve.record())))
    assert again.time_us(size) == pytest.approx(curve.time_us(size), rel=1e-2, abs=1e-3)


def test_between_two_sizes_the_time_runs_straight_in_bytes():
    curve = Curve.fit([1000, 4000], [10, 40])
    assert curve.time_us(2000) == pytest.approx(20)


def test_a_latency_bandwidth_line_is_met_exactly_everywhere():
    sizes = 2.0 ** np.arange(10, 28, 3)
    curve = Curve.fit(sizes, line(sizes))
    wanted = 2.0 ** np.arange(4, 34)
    np.testing.assert_allclose(curve.time_us(wanted), line(wanted), rtol=1e-9)


def test_the_latency_floor_stays_below_the_smallest_size():
    curve = Curve.fit([8, 64, 512, 4096, 1 << 20], [12, 12, 12, 12, 100])
    assert curve.time_us(1) == pytest.approx(12)


def test_a_slow_detour_does_not_bend_the_curve():
    sizes = 2.0 ** np.arange(10, 20)
    times = line(sizes)
    times[4] *= 5
    assert Curve.fit(sizes, times).time_us(sizes[4]) < 2 * line(sizes[4])


def test_one_impossibly_fast_reading_does_not_drag_the_smaller_sizes_down():
    sizes = 2.0 ** np.arange(10, 24)
    times = line(sizes)
    times[9] = 0.5
    np.testing.assert_allclose(Curve.fit(sizes, times).time_us(sizes[:9]), line(sizes[:9]), rtol=0.01)


def test_in_place_and_out_of_place_pairs_count_by_their_median():
    curve = Curve.fit([1024, 1024, 4096, 4096], [10, 12, 20, 22])
    assert curve.time_us(1024) == pytest.approx(11)


def test_repeating_every_row_changes_nothing():
    sizes = 2.0 ** np.arange(10, 20)
    once, twice = Curve.fit(sizes, line(sizes)), Curve.fit(np.tile(sizes, 2), np.tile(line(sizes), 2))
    np.testing.assert_array_equal(once.times_us, twice.times_us)


def test_noise_shows_in_the_spread():
    sizes = 2.0 ** np.arange(6, 28)
    noisy = line(sizes) * np.exp(np.random.default_rng(1).normal(0, 0.2, len(sizes)))
    assert Curve.fit(sizes, noisy).measured_spread > 2 * Curve.fit(sizes, line(sizes)).measured_spread


def test_the_spread_grows_beyond_the_range():
    sizes = 2.0 ** np.arange(16, 26)
    spread = Curve.fit(sizes, line(sizes)).spread([2.0**20, 2.0**28, 2.0**32])
    assert spread[0] < spread[1] < spread[2]


def test_a_single_size_goes_on_in_proportion():
    assert Curve.fit([1000], [10]).time_us(4000) == pytest.approx(40)


@pytest.mark.parametrize(
    ("sizes", "times", "said"),
    [
        ([], [], "at least one"),
        ([1, 2], [1], "one time per size"),
        ([1, 2], [1, 0], "zero or less"),
        ([0, 2], [1, 1], "zero or less"),
        ([1, 2], [1, float("nan")], "not numbers"),
    ],
)
def test_what_no_benchmark_can_have_measured_is_refused(sizes, times, said):
    with pytest.raises(StepsightError, match=said):
        Curve.fit(sizes, times)
