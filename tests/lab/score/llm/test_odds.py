"""The odds of slow runs, fitted with groups left out."""

from __future__ import annotations

import math

import pytest

from lab.score.llm.odds import Odds, Run, fit_odds, shipped_odds, stalls_of
from stepsight.collectives.stalls import JobLayout, SlowOdds, Stalls

USUAL = JobLayout(nodes=8, tensor_nodes=1, pipeline=2, replicas=2, overfull=0.0)


def made(group: str, layout: JobLayout, slow: int, runs: int) -> list[Run]:
    return [Run(group, layout.columns(), i < slow) for i in range(runs)]


def test_a_column_that_only_slow_runs_have_raises_the_odds() -> None:
    wide = JobLayout(nodes=8, tensor_nodes=4, pipeline=2, replicas=2, overfull=0.0)
    odds = fit_odds([*made("a", USUAL, 5, 50), *made("b", wide, 49, 50)])
    stalls = Stalls(1.0, 1.0, odds.all)
    assert stalls.probability(wide) > 0.8 and stalls.probability(USUAL) < 0.2


def test_shares_of_many_runs_are_met() -> None:
    odds = fit_odds(made("a", USUAL, 300, 1000))
    assert Stalls(1.0, 1.0, odds.all).probability(USUAL) == pytest.approx(0.3, abs=0.01)


def test_columns_that_no_run_had_leave_it_open() -> None:
    odds = fit_odds(made("a", USUAL, 5, 1000)).all
    far = JobLayout(nodes=512, tensor_nodes=1, pipeline=2, replicas=2, overfull=0.0)
    certain = SlowOdds(odds.weights)
    assert odds.probability(USUAL.columns()) == pytest.approx(0.005, abs=0.005)
    assert certain.probability(far.columns()) < 0.2 < odds.probability(far.columns()) < 0.5


def test_a_group_takes_no_part_in_the_odds_it_is_scored_with() -> None:
    odds = fit_odds([*made("calm", USUAL, 0, 100), *made("slow", USUAL, 100, 100)])
    without_slow = Stalls(1.0, 1.0, odds.of("slow")).probability(USUAL)
    without_calm = Stalls(1.0, 1.0, odds.of("calm")).probability(USUAL)
    assert without_slow < 0.2 and without_calm > 0.8


def test_a_group_that_no_fit_has_seen_gets_the_weights_of_all() -> None:
    odds = Odds(SlowOdds({"one": 1.0}), {"a": SlowOdds({"one": 2.0})})
    assert odds.of("a").weights == {"one": 2.0} and odds.of("b").weights == {"one": 1.0}


def test_the_weights_that_ship_name_columns_that_exist() -> None:
    assert set(shipped_odds().all.weights) == set(USUAL.columns())
    assert all(math.isfinite(w) for w in stalls_of("no such group", 1.0, 1.0).odds.weights.values())
