"""Constants fitted on traces: pooled by source, and without one."""

from __future__ import annotations

import math

import pytest

from stepsight.trace import fitted
from stepsight.trace.fitted import MEDIAN, ROOT_MEAN_SQUARE, SPREAD, FittedConstant, RunFigure, source_of
from stepsight.trace.rules import RULES


def _constant(pool: str, *figures: tuple[str, float]) -> FittedConstant:
    return FittedConstant(pool, tuple(RunFigure(source, value) for source, value in figures))


def test_sources_count_alike_however_many_runs_they_have():
    constant = _constant(MEDIAN, ("a", 1.0), ("a", 1.0), ("a", 1.0), ("b", 2.0), ("c", 4.0))
    assert constant.value() == pytest.approx(2.0)


def test_a_spread_is_what_two_thirds_do_not_pass():
    constant = _constant(SPREAD, *((name, -0.1 if name in "abc" else 0.2) for name in "abcdefgh"), ("z", 5.0))
    assert constant.value() == pytest.approx(0.2)


def test_a_source_left_out_has_no_say():
    constant = _constant(ROOT_MEAN_SQUARE, ("a", 0.1), ("b", 0.1), ("c", 9.0))
    assert constant.value("c") == pytest.approx(0.1)
    assert constant.value() > 1.0


def test_one_source_alone_is_no_pool():
    assert _constant(SPREAD, ("a", 0.1), ("b", 0.2)).value("b") is None


def test_folders_of_one_recorder_are_one_source():
    assert source_of("liplus_zero1_n1_2") == source_of("liplus_ddp_n3_4") == "liplus"
    assert source_of("somebody_else") == "somebody_else"


def test_a_rule_s_value_is_pooled_without_the_source_left_out(monkeypatch):
    figures = _constant(ROOT_MEAN_SQUARE, ("liplus", 10.0), ("a", 0.2), ("b", 0.2))
    monkeypatch.setattr(fitted, "shipped", lambda: fitted.Fitted("", {"spread_counted": figures}))
    fitted.fitted_value.cache_clear()
    try:
        assert RULES.value("spread_counted") > 5.0
        with RULES.left_out("liplus_ddp_1"):
            assert math.isclose(RULES.value("spread_counted"), 0.2)
            assert RULES.value("spread_unknown") == RULES["spread_unknown"].value
    finally:
        fitted.fitted_value.cache_clear()
