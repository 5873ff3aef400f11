"""Between sizes that lie far apart a curve runs as curves alike do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsight.collectives.curve import Curve
from stepsight.collectives.shapes import NO_SHAPES, Shapes, pooled, shipped_shapes

SIZES = np.exp2(np.arange(10, 31, dtype=float))
SIX = SIZES[::4]


def switching(latency_us: float = 20.0, gbps: float = 20.0, at: float = 2.0**21) -> np.ndarray:
    """Times of a collective that is three times as slow in bytes below a switch of protocol."""
    low = latency_us + np.minimum(SIZES, at) * 3 / (gbps * 1e3)
    return low + np.maximum(SIZES - at, 0) / (gbps * 1e3)


def known(times: np.ndarray) -> Shapes:
    return Shapes.of([Curve.fit(SIZES, times, NO_SHAPES)])


def at_six(times: np.ndarray, shapes: Shapes) -> Curve:
    return Curve.fit(SIX, times[::4], shapes)


def error(curve: Curve, times: np.ndarray) -> float:
    return float(np.abs(np.log(curve.time_us(SIZES) / times)).max())


def test_a_machine_like_a_known_one_switches_where_that_one_does():
    times = switching(25.0, 18.0)
    assert error(at_six(times, known(switching())), times) < 0.5 * error(at_six(times, NO_SHAPES), times)


def test_a_curve_like_no_other_stays_straight():
    steep = known(np.exp2(np.arange(21.0)))
    times = switching()
    np.testing.assert_allclose(at_six(times, steep).time_us(SIZES), at_six(times, NO_SHAPES).time_us(SIZES))


def test_known_times_are_kept():
    times = switching(30.0)
    np.testing.assert_allclose(at_six(times, known(switching())).time_us(SIX), times[::4])


def test_sizes_side_by_side_need_no_help():
    times = switching()
    assert len(Curve.fit(SIZES, times, known(times))) == len(SIZES)


def test_three_sizes_cannot_tell_a_curve_from_others():
    curve = Curve.fit(SIX[:3], switching()[::4][:3])
    assert len(curve) == 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1.0, 1e5), min_size=6, max_size=6))
def test_more_bytes_never_take_less_time_between_sizes_far_apart(times):
    curve = Curve.fit(SIX, times)  # with the shapes that ship
    assert (np.diff(curve.time_us(np.geomspace(SIX[0], SIX[-1], 300))) >= -1e-9).all()


def test_curves_of_one_name_are_pooled_by_their_median():
    three = Shapes.of(Curve.fit(SIZES, switching() * f, NO_SHAPES) for f in (1.0, 2.0, 9.0))
    one, names = pooled(three, [("a",), ("a",), ("a",)])
    assert names == [("a",)]
    np.testing.assert_allclose(one._at(SIX)[0], np.log(2 * switching()[::4]), rtol=1e-6)


def test_the_catalogues_curves_ship_as_shapes():
    assert len(shipped_shapes().ln_time) > 200


def test_a_shape_is_unknown_beyond_its_range():
    short = Shapes.of([Curve.fit(SIZES[5:10], switching()[5:10], NO_SHAPES)])
    assert np.isnan(short._at(SIZES[[0, -1]])).all()
    assert short._at(SIZES[[5, 9]])[0] == pytest.approx(np.log(switching()[[5, 9]]))


def test_times_on_one_line_leave_nothing_to_switch():
    times = 10.0 + SIZES / 2e4
    assert error(at_six(times, known(switching(10.0))), times) < 1e-9
