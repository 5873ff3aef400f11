"""Fields of a Hugging Face configuration that cost something and are not modelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepsight import load_platform, load_workload, predict
from stepsight.workload.llm.hugging_face import from_hugging_face

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008], "hidden_act": "silu", "hidden_size": 256,
    "initializer_range": 0.02, "intermediate_size": 768, "max_position_embeddings": 1024, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 4,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0}, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.43.0",
    "use_cache": True, "vocab_size": 1024,
}  # fmt: skip


def listed(**more: Any) -> str:
    return ", ".join(from_hugging_face(LLAMA | more, "config.json").get("not_modelled", []))


def test_a_plain_configuration_leaves_nothing_out() -> None:
    assert listed() == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("quantization_config", {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4"}),
        ("moe_layer_freq", 2),
        ("attn_logit_softcapping", 50.0),
        ("memory_layers", 4),  # whatever that may be, it looks like work
        ("use_block_sparse", True),
    ],
)
def test_what_costs_something_is_named(field: str, value: Any) -> None:
    assert field in listed(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("quantization_config", None),
        ("num_nextn_predict_layers", 0),
        ("n_group", 1),
        ("memory_layers", 0),
        ("use_block_sparse", False),
        ("pad_token_id", 11),
        ("resid_pdrop", 0.1),
        ("head_note", "text"),
    ],
)
def test_what_is_switched_off_or_free_is_not(field: str, value: Any) -> None:
    assert listed(**{field: value}) == ""


def test_groups_of_experts_are_read() -> None:
    experts = {"n_routed_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
    grouped = LLAMA | experts | {"model_type": "deepseek_v3", "n_group": 8, "topk_group": 4}
    found = from_hugging_face(grouped, "config.json")
    assert (found["moe"]["groups"], found["moe"]["active_groups"]) == (8, 4)
    assert "group" not in ", ".join(found.get("not_modelled", []))
    assert "groups" not in from_hugging_face(grouped | {"topk_group": 8}, "config.json")["moe"]


def test_a_vision_encoder_beside_the_language_model_is_named() -> None:
    whole = {"model_type": "mistral3", "text_config": LLAMA, "vision_config": {"hidden_size": 1024}}
    assert from_hugging_face(whole, "config.json")["not_modelled"] == ["vision_config (the images' encoder)"]


def test_the_answer_says_what_it_leaves_out_and_that_the_model_has_fewer_positions(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(msgspec.json.encode(LLAMA | {"quantization_config": {"quant_method": "fp8"}}))
    platform = load_platform("1xA100-SXM4-80G")
    notes = " | ".join(predict(load_workload(path, ["sequence=4096"]), platform).notes)
    assert "not modelled: quantization_config" in notes
    assert "4,096 tokens are beyond the 1,024 positions" in notes
    short = " | ".join(predict(load_workload(path), platform).notes)
    assert "positions" not in short


def test_layers_of_an_unknown_kind_are_named() -> None:
    listed = {"layer_types": ["full_attention", "linear_attention", "linear_attention"]}
    assert from_hugging_face(LLAMA | listed, "config.json")["not_modelled"] == [
        "layer_types (linear_attention: timed as attention)"
    ]
    known = {"layer_types": ["full_attention", "sliding_attention"]}
    assert "not_modelled" not in from_hugging_face(LLAMA | known, "config.json")
