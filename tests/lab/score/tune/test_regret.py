"""Regret by hand: picks, top three, crashes."""

import pytest

from lab.datasets.llm.case import Case
from lab.score.tune.regret import Candidate, file_regret, group_regret
from stepsight.tuning.trial import Row


def member(name, predicted_ms, measured_ms, fit=1.0):
    case = Case(
        {}, name=name, platform="8xH100-SXM", measured_ms=measured_ms, crashed=measured_ms is None, group="g"
    )
    row = Row(
        {}, "8xH100-SXM", step_time_us=1e3 * predicted_ms, samples_per_s=1e3 / (predicted_ms or 1.0), fit=fit
    )
    return Candidate(case, row if predicted_ms else None)


def test_the_pick_is_the_fastest_predicted():
    found = group_regret("g", [member("a", 10, 120), member("b", 11, 100), member("c", 30, 90)])
    assert found.pick == "a" and found.best == "c"
    assert found.regret == pytest.approx(120 / 90 - 1)
    assert found.top_regret == 0.0 and not found.crashed


def test_a_crashed_pick_is_counted_and_the_next_that_ran_is_taken():
    found = group_regret("g", [member("a", 10, None), member("b", 11, 110), member("c", 12, 100)])
    assert found.crashed and found.pick == "b"
    assert found.regret == pytest.approx(0.1)


def test_what_may_not_fit_is_not_picked_first():
    assert group_regret("g", [member("a", 10, None, fit=0.5), member("b", 11, 100)]).pick == "b"


def test_what_cannot_be_expressed_can_still_be_the_best():
    assert group_regret("g", [member("a", 10, 120), member("b", 0.0, 100)]).regret == pytest.approx(0.2)


def test_a_group_in_which_nothing_ran_is_left_out():
    assert file_regret("f", [member("a", 10, None)]).groups == 0


def test_means_are_over_groups():
    found = file_regret("f", [member("a", 10, 120), member("b", 11, 100)])
    assert (found.groups, found.crashed_picks) == (1, 0.0)
    assert found.mean_regret == pytest.approx(0.2)
    assert found.worst.group == "g"
