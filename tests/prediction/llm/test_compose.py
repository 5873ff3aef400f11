"""A composed step against the walk of its program, and what must always hold."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.llm.answer import quick
from stepsight.prediction.llm.compose import Composer
from stepsight.prediction.llm.passes import PassCache
from stepsight.prediction.predict import predict
from stepsight.simulate.timeline import simulate
from stepsight.workload.files import parse_workload
from stepsight.workload.llm.build import build
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


SPREADS: list[dict[str, Any]] = [
    {"micro_batch": 2},
    {"data": 8, "micro_batch": 1},
    {"data": 8, "zero": "fsdp"},
    {"data": 4, "tensor": 2, "micro_batch": 1, "zero": 1},
    {"data": 4, "tensor": 2, "micro_batch": 1, "zero": 1, "prefetch": True},
    {"data": 16, "micro_batch": 1, "zero": 2},
    {"data": 4, "micro_batch": 1, "zero": 2, "prefetch": False},
    {"data": 4, "micro_batch": 1, "zero": 2, "overlap_gradients": False},
    {"tensor": 8, "sequence_parallel": True, "micro_batch": 2},
    {"pipeline": 4, "micro_batch": 1, "data": 2},
    {"pipeline": 2, "virtual_stages": 2, "micro_batch": 1},
    {"pipeline": 4, "schedule": "afab", "micro_batch": 2},
    {"pipeline": 4, "tensor": 2, "sequence_parallel": True, "schedule": "zero_bubble", "micro_batch": 1},
    {"pipeline": 4, "data": 2, "schedule": "zero_bubble", "micro_batch": 1},
    {"pipeline": 2, "data": 2, "schedule": "zero_bubble", "micro_batch": 1, "zero": 3},
    {"context": 2, "data": 4, "micro_batch": 1},
    {"context": 4, "context_kind": "all_to_all", "data": 2, "micro_batch": 1},
]


@pytest.mark.parametrize("parallel", SPREADS, ids=str)
def test_the_composed_step_is_that_of_the_walk(platform: Platform, parallel: dict[str, Any]) -> None:
    c = config(**parallel)
    walked = simulate(build(c), platform, steps=1).step_us
    assert quick(c, platform).step_us == pytest.approx(walked, rel=0.06)


EXPERTS: list[dict[str, Any]] = [
    {"expert": 8},
    {"expert": 16, "expert_dispatch": "once"},
    {"expert": 16, "expert_overlap": "experts"},
    {"expert": 16, "expert_overlap": "all"},
    {"expert": 16, "expert_overlap": True, "expert_dispatch": "once", "pipeline": 4, "tensor": 1},
]


def mixture(**parallel: Any) -> LanguageConfig:
    document = {
        "kind": "transformer", "family": "mixtral", "layers": 8, "hidden": 4096, "heads": 32, "kv_heads": 8,
        "ffn": 14336, "vocab": 32000, "sequence": 4096, "global_batch": 64,
        "moe": {"experts": 64, "active": 8, "ffn": 2048}, "training": {"framework": "megatron"},
        "parallel": {"data": 16, "micro_batch": 1, **parallel},
    }  # fmt: skip
    return read_language(document, "test")


@pytest.mark.parametrize("parallel", EXPERTS, ids=str)
def test_the_composed_step_of_experts_is_that_of_the_walk(parallel: dict[str, Any]) -> None:
    machine, c = load_platform("8x8xH100-SXM-80G-400G"), mixture(**parallel)
    walked = simulate(build(c), machine, steps=1).step_us
    assert quick(c, machine).step_us == pytest.approx(walked, rel=0.06)


def test_exchanges_are_hidden_by_the_compute_that_is_there() -> None:
    """Beside another micro-batch's all, less is exposed than beside the experts' products, and no kernel is
    lost on the way."""
    machine = load_platform("2x8xH100-SXM-80G-400G")
    none, experts, everything = (
        quick(mixture(expert=16, expert_overlap=how), machine).composed.stages[0]
        for how in ("none", "experts", "all")
    )
    assert everything.exposed["expert"] < experts.exposed["expert"] < none.exposed["expert"]
    work, messages = sum(none.compute.values()), none.exposed["expert"]
    alone = 1 / 4  # the first of four micro-batches' forward pass and the last one's backward pass
    assert everything.exposed["expert"] <= max(0.0, messages - work) + (alone + 0.15) * messages
    for stage in (experts, everything):
        for name, us in none.compute.items():
            assert stage.compute[name] >= 0.999 * us


def test_a_token_that_goes_once_to_a_node_crosses_the_network_less_often() -> None:
    machine = load_platform("8x8xH100-SXM-80G-400G")

    def exchanged_us(**more: Any) -> float:
        (stage,) = quick(mixture(data=64, expert=64, **more), machine).composed.stages
        return stage.communication["expert"]

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
        quick(config({"framework": framework}, pipeline=4, micro_batch=1, schedule=schedule, **more), machine)
        for schedule in ("zero_bubble", "1f1b")
    )
    assert late.step_us <= 1.0001 * plain.step_us
    for one, other in zip(late.composed.stages, plain.composed.stages, strict=True):
        assert sum(one.compute.values()) == pytest.approx(sum(other.compute.values()))
        assert one.exposed.get("tensor", 0.0) == pytest.approx(other.exposed.get("tensor", 0.0))


def test_zero_bubble_with_experts_is_never_slower_than_1f1b() -> None:
    machine = load_platform("8x8xH100-SXM-80G-400G")
    for overlap in ("none", "experts", "all"):
        spread = {"expert": 16, "pipeline": 4, "expert_overlap": overlap}
        late, plain = (
            quick(mixture(schedule=schedule, **spread), machine).step_us
            for schedule in ("zero_bubble", "1f1b")
        )
        assert late <= 1.0001 * plain


def test_more_micro_batches_than_are_walked_cost_as_much_each(platform: Platform) -> None:
    few, more, most = (quick(read_language(_batched(n), "test"), platform).step_us for n in (64, 128, 192))
    assert most - more == pytest.approx(more - few, rel=1e-4)


def _batched(n: int) -> dict[str, Any]:
    return {
        "kind": "transformer", "family": "llama", "layers": 8, "hidden": 2048, "heads": 16, "ffn": 5504,
        "vocab": 32000, "sequence": 2048, "global_batch": n, "training": {"framework": "megatron"},
        "parallel": {"pipeline": 4, "micro_batch": 1},
    }  # fmt: skip


def test_without_a_pipeline_no_stage_waits_for_another(platform: Platform) -> None:
    """The all_reduce of the gradients' norm is communication."""
    (stage,) = quick(config(data=8, zero=3), platform).composed.stages
    assert stage.bubble_us == pytest.approx(0.0, abs=0.1)
    assert stage.exposed["world"] > 0


def test_the_bubble_is_waiting_in_the_breakdown_and_in_every_rank() -> None:
    workload = parse_workload(_batched(8), "x")
    found = predict(workload, "8xH100-SXM")
    waiting = [r.rank_wait_us for r in found.ranks]
    assert sum(waiting) / len(waiting) == pytest.approx(found.breakdown_us["waiting_for_ranks"])
    assert found.ranks[0].idle_us < 0.1 * found.ranks[0].rank_wait_us
    assert found.ranks[0].gpu_active_us + found.ranks[0].idle_us == pytest.approx(found.step_us)


def test_zero_2_reduces_the_gradients_of_every_micro_batch_and_zero_1_once(platform: Platform) -> None:
    """A rank that keeps its share of the gradients cannot add whole ones up."""

    def reduced_us(zero: int, micro_batch: int) -> float:
        (stage,) = quick(config(data=2, zero=zero, micro_batch=micro_batch), platform).composed.stages
        return stage.communication["shard"]

    assert reduced_us(1, 1) == pytest.approx(reduced_us(1, 4), rel=0.01)
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
    small = {"framework": "megatron-deepspeed"}
    eager, graphs = (config({**small, "cuda_graphs": g}, data=16, micro_batch=1) for g in (False, True))
    stages = [quick(c, platform).composed.stages[0] for c in (eager, graphs)]
    assert stages[1].host_us < 0.3 * stages[0].host_us


def test_recomputation_costs_time_and_saves_memory(platform: Platform) -> None:
    from stepsight.workload.llm.memory import language_memory

    plain, again = config(data=4), config({"recompute": "full"}, data=4)
    assert quick(again, platform).step_us > 1.2 * quick(plain, platform).step_us
    assert language_memory(again).peak_bytes < language_memory(plain).peak_bytes


def test_passes_that_configurations_share_are_priced_once_and_the_same(platform: Platform) -> None:
    known = PassCache()
    for parallel in SPREADS:
        alone, shared = Composer(config(**parallel), platform), Composer(config(**parallel), platform, known)
        assert shared.step() == alone.step()
        assert shared.pricer.tally.notes == alone.pricer.tally.notes
        assert shared.pricer.tally.sources == pytest.approx(alone.pricer.tally.sources)
