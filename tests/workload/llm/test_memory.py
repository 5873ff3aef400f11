"""What stages of a language model hold."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.errors import InputError
from stepsight.workload.files import named
from stepsight.workload.llm.config import LanguageConfig, read_language
from stepsight.workload.llm.layer import LayerWork, layer_work
from stepsight.workload.llm.memory import stage_memory
from stepsight.workload.memory import RankMemory


def config(training: dict[str, Any] | None = None, **parallel: Any) -> LanguageConfig:
    document = {
        "kind": "transformer", "family": "llama", "layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096,
        "vocab": 8192, "sequence": 1024, "global_batch": 16,
        "training": {"framework": "megatron", **(training or {})}, "parallel": parallel,
    }  # fmt: skip
    return read_language(document, "test")


def test_early_stages_hold_the_activations_of_more_micro_batches() -> None:
    held = [m.activations for m in stage_memory(config(pipeline=4, micro_batch=1))]
    assert held[0] > held[1] > held[2]


def test_delayed_weights_gradients_keep_their_activations() -> None:
    """Zero-bubble needs no more than 1F1B's first stage, but late stages need as much."""
    spread = {"pipeline": 4, "micro_batch": 1}
    plain, late = (
        [m.activations for m in stage_memory(config(schedule=schedule, **spread))]
        for schedule in ("1f1b", "zero_bubble")
    )
    assert late[0] == plain[0] and late[1] == pytest.approx(plain[1] * 4 / 3)


def test_a_state_in_half_precision_has_no_copies() -> None:
    usual, half = (stage_memory(config({"optimizer_state": s}))[0] for s in ("fp32", "half"))
    assert half.optimizer_state == pytest.approx(usual.optimizer_state / 3)  # 4 of 12 bytes per parameter
    with pytest.raises(InputError, match="optimizer_state"):
        config({"optimizer_state": "half", "precision": "fp32"})


def test_zero_shares_out_state_then_gradients_then_parameters() -> None:
    plain, one, two, three = (stage_memory(config(data=4, zero=z))[0] for z in range(4))
    assert one.optimizer_state == pytest.approx(plain.optimizer_state / 4)
    assert one.gradients == plain.gradients and two.gradients < one.gradients
    assert three.parameters == pytest.approx(plain.parameters / 4)


@pytest.mark.parametrize("pipeline", [1, 2])
def test_parameters_that_are_not_resharded_stay_between_the_passes(pipeline: int) -> None:
    """In half precision, all of the stage's, beside the rank's own share."""
    spread = {"data": 4, "pipeline": pipeline, "micro_batch": 1}
    whole = stage_memory(config(zero=1, **spread))
    apart, kept = (stage_memory(config(zero=3, reshard=r, **spread)) for r in (True, False))
    for all_of_them, share, held in zip(whole, apart, kept, strict=True):
        assert held.parameters == pytest.approx(share.parameters + all_of_them.parameters)
        assert held.total > share.total


def test_a_smaller_sharding_group_holds_more() -> None:
    small, all_of_them = (
        stage_memory(config(data=8, zero=3, **more))[0] for more in ({"shard_group": 2}, {})
    )
    assert small.optimizer_state == pytest.approx(4 * all_of_them.optimizer_state)


def test_recomputation_of_some_layers_lies_between_none_and_all() -> None:
    none, some, full = (
        stage_memory(config({"recompute": how}, micro_batch=1))[0].activations for how in ("none", 4, "full")
    )
    assert none > some > full


@pytest.mark.parametrize(
    "model", ["deepseek-v3", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "llama3-8b"]
)
@pytest.mark.parametrize("expert", [1, 8])
def test_selective_recomputation_saves_memory_and_runs_something_again(model: str, expert: int) -> None:
    """With experts and low-rank attention, too."""

    def layer(recompute: str) -> LayerWork:
        spread = {"data": 8, "expert": expert} if expert > 1 and "llama" not in model else {}
        training = {"framework": "torchtitan", "recompute": recompute}
        c = read_language({**named(model), "training": training, "parallel": spread}, model)
        return layer_work(c, experts=c.model.experts is not None)

    none, some, full = (layer(how) for how in ("none", "selective", "full"))
    assert full.forward.kept_bytes < some.forward.kept_bytes < 0.9 * none.forward.kept_bytes
    assert none.backward.launches < some.backward.launches <= full.backward.launches


@pytest.mark.parametrize("attention", ["flash2", "cudnn"])
def test_selective_recomputation_that_saves_nothing_is_refused(attention: str) -> None:
    """Megatron's runs the inside of attention again, which fused attention does not keep."""
    with pytest.raises(InputError, match=r"recompute: selective .* save no memory"):
        config({"recompute": "selective", "attention": attention})
    none, some = (
        stage_memory(config({"recompute": how, "attention": "fused"}))[0].activations
        for how in ("none", "selective")
    )
    assert some < none


def test_adapters_need_hardly_any_optimizer_state() -> None:
    whole, adapters = (stage_memory(config({"adapters": value}))[0] for value in (False, True))
    assert adapters.optimizer_state < 0.01 * whole.optimizer_state
    assert adapters.parameters == whole.parameters


def test_gathered_inputs_pile_up_where_the_host_runs_ahead() -> None:
    """Without a pipeline, and on the first stage of one with more than two micro-batches on their way."""

    def piled_up(**parallel: Any) -> list[float]:
        sequence = {"sequence_parallel": True, "micro_batch": 1, **parallel}
        training = {"framework": "nanotron", "expandable_segments": True}
        return [m.reclaimable for m in stage_memory(config(training, **sequence))]

    assert piled_up(tensor=4)[0] > 0
    first, *others = piled_up(tensor=4, pipeline=4)
    assert first > 0 and not any(others)
    assert piled_up(tensor=4, pipeline=2) == [0.0, 0.0]


def test_free_blocks_do_not_count_for_what_fits() -> None:
    (held,) = stage_memory(config({"framework": "nanotron"}, tensor=4, sequence_parallel=True, micro_batch=1))
    assert held.reserved == held.total + held.reclaimable > held.total


def test_a_single_micro_batch_piles_up_no_more_than_its_own_layers() -> None:
    def piled_up(data: int) -> float:
        parallel = {"tensor": 4, "sequence_parallel": True, "micro_batch": 1, "data": data}
        training = {"framework": "nanotron", "expandable_segments": True}
        return stage_memory(config(training, **parallel))[0].reclaimable

    layer = 2 * 2 * 1024 * 1024 * (1 - 1 / 4)
    assert piled_up(16) == pytest.approx(8 * layer) and piled_up(8) > piled_up(16)


def test_gathered_inputs_are_kept_by_frameworks_that_do_not_gather_again() -> None:
    split, kept = (
        stage_memory(config({"framework": f}, tensor=4, sequence_parallel=True, micro_batch=1))[0].activations
        for f in ("hf", "scaling")
    )
    assert kept > split


def test_frozen_weights_are_held_in_their_own_type() -> None:
    half, fp8, nf4 = (
        stage_memory(config({"adapters": "lora", "frozen_weights": kind}))[0].parameters
        for kind in ("half", "fp8", "nf4")
    )
    assert half > fp8 > nf4 > 0.25 * half
    assert stage_memory(config({"adapters": "qlora"}))[0].parameters == nf4


def test_frozen_projections_keep_no_input() -> None:
    trained, frozen, adapted = (
        stage_memory(config(training))[0].activations
        for training in ({}, {"adapters": "lora"}, {"adapters": "lora", "adapter_targets": "all"})
    )
    assert frozen < adapted
    assert frozen < trained


def test_fp8_products_keep_their_inputs_in_fp8() -> None:
    assert stage_memory(config({"precision": "fp8"}))[0].activations < stage_memory(config())[0].activations


def test_segments_that_expand_leave_less_unused() -> None:
    native, expandable = (stage_memory(config({"expandable_segments": on}))[0].cached for on in (False, True))
    assert expandable < native


def test_modules_that_run_again_keep_less() -> None:
    held = [
        stage_memory(config({"recompute": modules}))[0].activations
        for modules in ("none", ["mlp_act"], ["mlp_act", "layernorm"], ["mlp", "layernorm"])
    ]
    assert held == sorted(held, reverse=True)
    assert held[0] > held[-1]


def test_logits_live_once_whatever_is_in_flight() -> None:
    """The last stage goes from the forward to the backward pass of its head at once."""
    shallow, deep = (
        stage_memory(config(pipeline=4, virtual_stages=n, micro_batch=1))[-1].activations for n in (1, 2)
    )
    assert deep < 3 * shallow


def test_free_segments_are_returned_where_memory_is_short() -> None:
    """They count for what the allocator holds, not for what fits; expandable segments leave none."""
    usual, joined = (stage_memory(config({"expandable_segments": e}))[0] for e in (False, True))
    assert usual.reserved > usual.total > joined.total == joined.reserved


def test_a_loss_in_half_precision_needs_less_than_one_in_fp32() -> None:
    def temporary(recipe: str) -> float:
        return stage_memory(config({"recipe": recipe, "framework": recipe}, data=2))[0].temporary

    assert temporary("llm-foundry") < temporary("deepspeed")


def test_four_bit_products_of_old_libraries_keep_their_inputs() -> None:
    """bitsandbytes before 0.43.2 held what adapters on attention alone would not need: the MLP's inputs."""

    def held(framework: str, adapters: str) -> RankMemory:
        return stage_memory(config({"framework": framework, "precision": "bf16", "adapters": adapters}))[0]

    old, new = ((held(f, "lora"), held(f, "qlora")) for f in ("litgpt", "eager"))
    assert all(q.parameters < lora.parameters for lora, q in (old, new))
    assert old[1].activations > old[0].activations and new[1].activations == new[0].activations


def test_peft_casts_what_is_not_quantised_to_fp32() -> None:
    plain, peft = (
        stage_memory(config({"framework": f, "precision": "bf16", "adapters": "qlora"}))[0].parameters
        for f in ("eager", "hf")
    )
    assert peft - plain == pytest.approx(2 * 2 * 8192 * 1024, rel=0.01)
