"""A site's slow state: how likely, and what it costs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from stepsight.collectives.stalls import PLAIN, HostState, JobLayout, SlowOdds, Stalls

STALLS = Stalls(check_us=2.0, poll_us=100.0, odds=SlowOdds({"one": -6.0, "doublings": 1.0, "pipeline": 1.0}))
LAYOUT = JobLayout(nodes=8, tensor_nodes=1, pipeline=4, replicas=2, overfull=0.0)


def test_one_node_has_no_slow_runs() -> None:
    assert STALLS.probability(replace(LAYOUT, nodes=1)) == 0.0


def test_odds_are_logistic_in_the_columns() -> None:
    one, other = (STALLS.probability(replace(LAYOUT, nodes=n)) for n in (4, 8))
    assert math.log(other / (1 - other)) - math.log(one / (1 - one)) == pytest.approx(1.0)
    assert STALLS.probability(replace(LAYOUT, pipeline=1)) < other


def test_many_nodes_count_where_they_have_a_weight() -> None:
    stalls = Stalls(1.0, 1.0, SlowOdds({"many_nodes": 1.0}))
    assert stalls.probability(replace(LAYOUT, nodes=16)) == 0.5
    assert stalls.probability(replace(LAYOUT, nodes=64)) == pytest.approx(1 / (1 + math.exp(-4.0)))


def test_a_measured_run_is_slow_where_no_other_fits() -> None:
    stalls = Stalls(1.0, 1.0, SlowOdds({}))
    assert [stalls.measured_probability(replace(LAYOUT, overfull=o)) for o in (0.0, 0.5, 1.0)] == [
        0.5,
        0.75,
        1.0,
    ]
    assert stalls.probability(replace(LAYOUT, overfull=1.0)) == 0.5
    assert stalls.measured_probability(replace(LAYOUT, nodes=1, overfull=1.0)) == 0.0


def test_whole_gradients_count_with_a_pipeline_over_many_micro_batches_of_a_smaller_model() -> None:
    stalls = Stalls(1.0, 1.0, SlowOdds({"accumulating": 1.0}))
    many = replace(LAYOUT, whole_gradients=16)
    assert stalls.probability(many) == pytest.approx(1 / (1 + math.exp(-3.0)))
    for other in ({"whole_gradients": 8}, {"pipeline": 1}, {"parameters": 80e9}):
        assert stalls.probability(replace(many, **other)) == 0.5
    assert stalls.probability(replace(many, nodes=16)) == stalls.probability(many)


def test_wide_tensor_groups_without_a_pipeline_count_with_larger_micro_batches() -> None:
    stalls = Stalls(1.0, 1.0, SlowOdds({"batched_wide_tensor": 1.0}))
    wide = replace(LAYOUT, pipeline=1, tensor_nodes=4, micro_batch=8)
    assert stalls.probability(wide) == pytest.approx(1 / (1 + math.exp(-1.0)))
    for other in ({"micro_batch": 1}, {"pipeline": 2}, {"tensor_nodes": 2}, {"replicas": 1}, {"nodes": 64}):
        assert stalls.probability(replace(wide, **other)) == 0.5


def test_a_column_that_no_weight_names_counts_nothing() -> None:
    assert STALLS.probability(replace(LAYOUT, tensor_nodes=4)) == STALLS.probability(LAYOUT)


def test_pipelines_over_nodes_check_and_slow_ones_poll() -> None:
    assert STALLS.usual(2, 4) == HostState(check_us=2.0)
    assert STALLS.slow(2, 4) == HostState(check_us=2.0, poll_us=100.0)


def test_without_a_pipeline_only_slow_runs_check() -> None:
    assert STALLS.usual(2, 1) == PLAIN and STALLS.slow(2, 1) == HostState(check_us=2.0)


def test_on_one_node_hosts_do_neither() -> None:
    assert STALLS.usual(1, 4) == STALLS.slow(1, 4) == PLAIN
