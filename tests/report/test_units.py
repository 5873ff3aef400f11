"""Numbers as people read them."""

from __future__ import annotations

import pytest

from stepsight.prediction.display import change, energy_words, share, size, time
from stepsight.prediction.throughput import Energy


@pytest.mark.parametrize(
    ("us", "words"), [(0.04, "0.0 µs"), (12.34, "12.3 µs"), (4560.0, "4.56 ms"), (7.89e6, "7.89 s")]
)
def test_times_have_the_unit_that_suits_them(us: float, words: str) -> None:
    assert time(us) == words


@pytest.mark.parametrize(("count", "words"), [(12, "12 B"), (1500, "1.50 KB"), (2e9, "2.00 GB")])
def test_sizes_are_decimal(count: float, words: str) -> None:
    assert size(count) == words


def test_shares_and_changes_are_in_percent() -> None:
    assert share(0.123) == "12.3 %"
    assert change(0.5) == "+50 %"
    assert change(-0.031, 1) == "−3.1 %"


@pytest.mark.parametrize("fraction", [-0.0001, 0.0, 0.0001])
def test_no_change_has_no_minus(fraction: float) -> None:
    assert change(fraction, 1) == "+0.0 %"


@pytest.mark.parametrize(
    ("joules", "words"), [(0.145, "0.145 J (40.3 µWh)"), (4.0, "4 J (1.11 mWh)"), (61.3e3, "61.3 kJ (17 Wh)")]
)
def test_energy_has_the_unit_that_suits_it(joules: float, words: str) -> None:
    assert energy_words(Energy(joules, joules / 3600, 300.0, 1.0, None, None)).startswith(f"{words} per step")
