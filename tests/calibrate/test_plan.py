"""Budgets in words, and what they buy."""

from __future__ import annotations

import pytest

from stepsight.calibrate.session import SHARES, Amounts, budget_seconds
from stepsight.errors import InputError


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300), ("90s", 90), ("1h", 3600), ("120", 120), ("1.5 m", 90)]
)
def test_budgets_read_as_people_write_them(text: str, seconds: float) -> None:
    assert budget_seconds(text) == seconds


@pytest.mark.parametrize("text", ["soon", "-5m", "5d", "", "1s", "5"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--budget"):
        budget_seconds(text)


def test_a_short_budget_measures_less_of_everything_but_not_nothing() -> None:
    short, full = Amounts.within(30), Amounts.within(300)
    assert 0 < short.kernels < full.kernels
    assert 0 < short.dlrms < full.dlrms
    assert Amounts.within(3000) == full


def test_the_stages_share_one_budget() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
