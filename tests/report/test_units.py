"""Numbers as people read them."""

from __future__ import annotations

import pytest

from stepsight.prediction.display import change, share, size, time


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
