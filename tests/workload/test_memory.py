"""Memory per rank: what counts, and against what it is held."""

from __future__ import annotations

from pathlib import Path

from stepsight.workload.files import load_workload

EXAMPLES = Path(__file__).parents[1] / "data" / "workloads"


def test_tables_stand_on_the_rank_the_plan_gives_them() -> None:
    report = load_workload(EXAMPLES / "dlrm.toml", ["parallel.sharding=[0, 0, 0, 0, 0, 1, 1, 2]"]).memory()
    one_table = 1_000_000 * 128 * 4
    assert [rank.tables for rank in report.ranks] == [5 * one_table, 2 * one_table, one_table, 0]
    assert report.peak_bytes == report.ranks[0].total


def test_adam_keeps_two_values_per_parameter_and_sgd_none() -> None:
    adam = load_workload(EXAMPLES / "bert.toml").memory().ranks[0]
    sgd = load_workload(EXAMPLES / "bert.toml", ["training.optimizer=sgd"]).memory().ranks[0]
    assert adam.optimizer_state == 2 * adam.parameters
    assert sgd.optimizer_state == 0
    assert adam.gradients == adam.parameters


def test_buckets_cost_memory_only_with_more_than_one_replica() -> None:
    assert load_workload(EXAMPLES / "bert.toml", ["parallel.ranks=1"]).memory().ranks[0].buckets == 0
    assert load_workload(EXAMPLES / "bert.toml").memory().ranks[0].buckets > 0


def test_activations_grow_with_the_batch_and_shrink_with_fused_attention() -> None:
    def activations(*change: str) -> float:
        held = load_workload(EXAMPLES / "gpt2.toml", change).memory().ranks[0]
        still = held.parameters + held.optimizer_state + held.buckets  # gradients come as activations go
        return held.peak_active - still

    assert 1.9 < activations("batch_per_rank=16") / activations("batch_per_rank=8") < 2.1
    assert activations("training.attention=flash") < activations()


def test_what_does_not_fit_is_known_by_how_much() -> None:
    report = load_workload(EXAMPLES.parents[2] / "examples" / "dlrm_mlperf.toml").memory()
    assert report.excess_bytes(40) > 50e9
    assert report.excess_bytes(200) < 0
