import numpy as np

from stepsight.calibrate.lookup_fit import fit_steady, round_shifts


def machine(rng: np.random.Generator, slow: bool = True):
    """Tables with two kinds of work, measured in rounds of eight in fast and slow minutes."""
    done = rng.uniform(100, 2000, (160, 2))
    rounds = np.arange(160) // 8
    true_us = done @ np.array([1.0, 3.0])
    drift = 0.2 * np.sin(rounds / 3) if slow else np.zeros(160)
    return done, rounds, true_us, true_us * np.exp(drift + rng.normal(0, 0.02, 160))


def test_slow_minutes_do_not_bend_the_model() -> None:
    done, rounds, true_us, measured = machine(np.random.default_rng(0))
    seen, folds = np.log(done), np.arange(160) % 4
    steady = fit_steady(done, seen, measured, folds, rounds).table_us(done, seen)
    told_nothing = fit_steady(done, seen, measured, folds, np.zeros(160)).table_us(done, seen)
    level = np.log(steady / true_us)
    assert np.std(level) < 0.5 * np.std(np.log(told_nothing / true_us))
    assert abs(level.mean()) < 0.05


def test_a_round_that_is_off_as_a_whole_is_shifted_as_a_whole() -> None:
    log_error = np.array([0.2] * 8 + [-0.2] * 8)
    shift = round_shifts(log_error, np.full(16, 1e6), np.repeat([0, 1], 8))
    np.testing.assert_allclose(shift, log_error * 8 / 9, rtol=1e-3)


def test_short_calls_say_little_of_their_minute() -> None:
    log_error = np.array([0.2] * 8 + [0.0] * 8)
    short = round_shifts(log_error, np.full(16, 10.0), np.repeat([0, 1], 8))
    long = round_shifts(log_error, np.full(16, 1e4), np.repeat([0, 1], 8))
    assert np.ptp(short) < 0.3 * np.ptp(long)


def test_shifts_are_zero_on_the_whole() -> None:
    rng = np.random.default_rng(1)
    shift = round_shifts(rng.normal(0.5, 0.1, 40), rng.uniform(100, 5000, 40), np.arange(40) // 5)
    assert abs(shift.mean()) < 1e-12
