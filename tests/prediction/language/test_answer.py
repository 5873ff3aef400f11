"""A language model's step walked block by block: what must always hold."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.language import LanguageStep, quick
from stepsight.prediction.predict import predict
from stepsight.simulate.blocks import Question
from stepsight.workload.files import load_model, parse_workload
from stepsight.workload.llm.config import LanguageConfig, read_language


@pytest.fixture(scope="module")
def platform() -> Platform:
    return load_platform("2x8xH100-SXM-80G-400G")


def config(training: dict[str, Any] | None = None, **parallel: Any) -> LanguageConfig:
    document = {
        "kind": "transformer", "family": "llama", "layers": 16, "hidden": 4096, "heads": 32, "kv_heads": 8,
        "ffn": 14336, "vocab": 32000, "sequence": 4096, "global_batch": 16,
        "training": {"framework": "megatron", **(training or {})}, "parallel": parallel,
    }  # fmt: skip
    return read_language(document, "test")


def mixture(**parallel: Any) -> LanguageConfig:
    document = {
        "kind": "transformer", "family": "mixtral", "layers": 8, "hidden": 4096, "heads": 32, "kv_heads": 8,
        "ffn": 14336, "vocab": 32000, "sequence": 4096, "global_batch": 64,
        "moe": {"experts": 64, "active": 8, "ffn": 2048}, "training": {"framework": "megatron"},
        "parallel": {"data": 16, "micro_batch": 1, **parallel},
    }  # fmt: skip
    return read_language(document, "test")


def test_exchanges_are_hidden_by_the_compute_that_is_there() -> None:
    """Overlapped with all that another micro-batch computes, less is exposed than with the experts' GEMMs."""
    machine = load_platform("2x8xH100-SXM-80G-400G")
    none, experts, everything = (
        quick(mixture(expert=16, expert_overlap=how), machine).step_us for how in ("none", "experts", "all")
    )
    assert everything < experts < none


def test_a_token_that_goes_once_to_a_node_crosses_the_network_less_often() -> None:
    machine = load_platform("8x8xH100-SXM-80G-400G")

    def exchanged_us(**more: Any) -> float:
        return LanguageStep(mixture(data=64, expert=64, **more), machine).walk.spent_us()["expert"]

    each, once = exchanged_us(), exchanged_us(expert_dispatch="once")
    assert once < 0.8 * each


@pytest.mark.parametrize(
    "more",
    [
        {"tensor": 8, "sequence_parallel": True},
        {"tensor": 4},
        {"data": 4, "zero": 3},
        {"data": 4, "zero": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("framework", ["megatron", "megatron-deepspeed", "nanotron", "torchtitan"])
def test_zero_bubble_is_never_slower_than_1f1b(framework: str, more: dict[str, Any]) -> None:
    """The same work, of which the weights' part may come later."""
    machine = load_platform("4x8xH100-SXM-80G-400G")
    late, plain = (
        LanguageStep(
            config({"framework": framework}, pipeline=4, micro_batch=1, schedule=schedule, **more), machine
        )
        for schedule in ("zero_bubble", "1f1b")
    )
    assert late.step_us() <= 1.01 * plain.step_us()
    assert late.walk.spent_us()["gemm"] == pytest.approx(plain.walk.spent_us()["gemm"], rel=0.02)


def test_zero_bubble_with_experts_is_never_slower_than_1f1b() -> None:
    machine = load_platform("8x8xH100-SXM-80G-400G")
    for overlap in ("none", "experts", "all"):
        spread = {"expert": 16, "pipeline": 4, "expert_overlap": overlap}
        late, plain = (
            quick(mixture(schedule=schedule, **spread), machine).step_us
            for schedule in ("zero_bubble", "1f1b")
        )
        assert late <= 1.002 * plain


def test_more_micro_batches_than_are_walked_cost_as_much_each(platform: Platform) -> None:
    few, more, most = (quick(read_language(_batched(n), "test"), platform).step_us for n in (64, 128, 192))
    assert most - more == pytest.approx(more - few, rel=1e-4)


def _batched(n: int) -> dict[str, Any]:
    return {
        "kind": "transformer", "family": "llama", "layers": 8, "hidden": 2048, "heads": 16, "ffn": 5504,
        "vocab": 32000, "sequence": 2048, "global_batch": n, "training": {"framework": "megatron"},
        "parallel": {"pipeline": 4, "micro_batch": 1},
    }  # fmt: skip


def test_the_bubble_is_waiting_in_the_breakdown_and_in_every_rank() -> None:
    document = _batched(8)
    document["parallel"]["zero"] = 0  # whose update the host does not loop over
    found = predict(parse_workload(document, "x"), "8xH100-SXM")
    waiting = [r.rank_wait_us for r in found.ranks]
    assert sum(waiting) / len(waiting) == pytest.approx(found.breakdown_us["waiting_for_ranks"])
    assert found.ranks[0].idle_us < 0.1 * found.ranks[0].rank_wait_us
    assert found.ranks[0].gpu_active_us + found.ranks[0].idle_us == pytest.approx(found.step_time_us)


def test_zero_2_reduces_the_gradients_of_every_micro_batch_and_zero_1_once(platform: Platform) -> None:
    """A rank that keeps its share of the gradients cannot add whole ones up."""

    def reduced_us(zero: int, micro_batch: int) -> float:
        return LanguageStep(config(data=2, zero=zero, micro_batch=micro_batch), platform).walk.spent_us()[
            "shard"
        ]

    assert reduced_us(1, 1) == pytest.approx(reduced_us(1, 4), rel=0.05)
    assert reduced_us(2, 1) > 3 * reduced_us(2, 4)


def test_offloaded_state_costs_time_and_saves_memory(platform: Platform) -> None:
    from stepsight.workload.llm.memory import language_memory

    plain, away = config(data=4), config({"offload": "optimizer"}, data=4)
    assert quick(away, platform).step_us > quick(plain, platform).step_us
    assert language_memory(away).ranks[0].optimizer_state == 0.0


def test_lamb_and_loss_scaling_cost_more_than_adam(platform: Platform) -> None:
    def step_us(**training: Any) -> float:
        return quick(config(training, data=4), platform).step_us

    assert step_us(optimizer="lamb") > step_us(optimizer="adamw")
    assert step_us(precision="fp16") > step_us(precision="fp16", loss_scaling=False)


def test_captured_passes_leave_no_gaps(platform: Platform) -> None:
    """A small micro-batch is bound by the host, unless its passes are launched as graphs."""
    small = {"framework": "megatron"}
    eager, graphs = (config({**small, "cuda_graphs": g}, data=16, micro_batch=1) for g in (False, True))
    slow = [LanguageStep(c, platform).walk.steps_us([Question(host=20.0)])[0] for c in (eager, graphs)]
    assert slow[1] < 0.5 * slow[0]


def test_recomputation_costs_time_and_saves_memory(platform: Platform) -> None:
    from stepsight.workload.llm.memory import language_memory

    plain, again = config(data=4), config({"recompute": "full"}, data=4)
    assert quick(again, platform).step_us > 1.2 * quick(plain, platform).step_us
    assert language_memory(again).peak_bytes < language_memory(plain).peak_bytes


def test_the_interval_is_wide_where_no_steps_of_a_vendor_were_scored(platform: Platform) -> None:
    known, unknown = (quick(config(data=16), where) for where in (platform, load_platform("2x8xMI300X-400G")))
    assert known.high_us / known.low_us < 1.3
    assert unknown.high_us / unknown.low_us > 2


@pytest.mark.parametrize("framework", ["hf", "deepspeed", "torchtitan"])
def test_frameworks_that_launch_the_same_step_name_each_other(framework: str) -> None:
    def notes(zero: int) -> list[str]:
        settings = {"training.framework": framework, "global_batch": "32", "parallel.zero": str(zero)}
        return [
            n for n in predict(load_model("llama3-8b", settings), "8xH100-SXM").notes if "the same step" in n
        ]

    assert len(notes(3)) == (framework != "torchtitan")
    assert not notes(1)
