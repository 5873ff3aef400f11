"""Models by name and by Hugging Face configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepsight.errors import InputError
from stepsight.workload.files import (
    is_config,
    load_model,
    load_workload,
    model_name,
    parse_workload,
    read_config,
    shipped,
)
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.hugging_face import from_hugging_face
from stepsight.workload.llm.workload import LanguageWorkload

PARAMETERS_B = {
    "llama2-7b": 6.74, "llama3-8b": 8.03, "llama3-70b": 70.6, "llama3.1-405b": 405.9, "mixtral-8x7b": 46.7,
    "qwen3-30b-a3b": 30.5, "qwen3-235b-a22b": 235, "deepseek-v3": 671, "deepseek-v2": 236, "mpt-7b": 6.65,
    "gpt3-175b": 175, "gemma-7b": 8.54, "opt-13b": 12.9,
    "opt-6.7b": 6.66, "opt-30b": 30.0, "opt-66b": 65.7, "opt-175b": 174.6,
    "qwen2.5-0.5b": 0.494, "qwen2.5-1.5b": 1.54,
    "qwen2.5-3b": 3.09, "qwen2.5-7b": 7.62, "qwen2.5-14b": 14.8, "qwen2.5-32b": 32.8, "qwen2.5-72b": 72.7,
    "qwen3-0.6b": 0.596, "qwen3-1.7b": 1.72, "qwen3-4b": 4.02, "qwen3-14b": 14.8, "qwen3-32b": 32.8,
    "mixtral-8x22b": 140.6, "mistral-nemo-12b": 12.2, "mistral-small-24b": 23.6, "mistral-large-123b": 122.6,
    "gemma2-2b": 2.61, "gemma2-9b": 9.24, "gemma2-27b": 27.2, "gemma3-1b": 1.0, "gemma3-4b": 3.88,
    "gemma3-12b": 11.8, "gemma3-27b": 27.0, "deepseek-v2-lite": 15.7, "gpt-oss-20b": 20.9,
    "phi-3-mini": 3.82, "phi-4": 14.7, "olmo2-7b": 7.3, "smollm2-1.7b": 1.71, "llama3.3-70b": 70.6,
    "nemotron-h-47b": 46.8, "nemotron-nano-9b-v2": 8.9, "nemotron-nano-12b-v2": 12.3, "glm-4.5": 355,
    "glm-4.5-air": 107, "glm-4.7-flash": 30, "minimax-m2": 229, "qwen1.5-7b": 7.72, "qwen1.5-72b": 72.3,
    "internlm2-7b": 7.74, "internlm2-20b": 19.9, "baichuan2-7b": 7.5, "granite-3.3-8b": 8.17,
    "smollm3-3b": 3.08, "ernie-4.5-21b-a3b": 21.8,
    "t5-v1.1-small": 0.077, "t5-v1.1-large": 0.783, "t5-v1.1-xl": 2.85,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_model_can_be_spread_and_fits_somewhere(name: str) -> None:
    workload = load_model(name, ["parallel.data=8", "parallel.zero=fsdp"])
    assert isinstance(workload, LanguageWorkload)
    assert workload.job().ranks == 1 and workload.memory().peak_bytes > 0


@pytest.mark.parametrize("name", sorted(PARAMETERS_B))
def test_shipped_sizes_give_the_published_number_of_parameters(name: str) -> None:
    workload = load_model(name)
    assert isinstance(workload, LanguageWorkload)
    assert workload.config.model.parameters() / 1e9 == pytest.approx(PARAMETERS_B[name], rel=0.015)


def test_an_unknown_model_names_its_neighbour() -> None:
    with pytest.raises(InputError, match="llama3-8b"):
        load_model("lama3-8b")


QWEN: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_hugging_face_configuration_is_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(msgspec.json.encode(QWEN))
    workload = load_workload(path, ["sequence=4096", "parallel.data=4", "global_batch=8"])
    assert isinstance(workload, LanguageWorkload)
    assert workload.config.model.parameters() / 1e9 == pytest.approx(7.6, rel=0.01)
    assert workload.config.batch_per_rank == 2


def test_experts_and_latent_attention_of_a_configuration() -> None:
    config = {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
        "num_attention_heads": 128,
        "num_hidden_layers": 61, "num_key_value_heads": 128, "vocab_size": 129280, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
        "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128,
    }  # fmt: skip
    sizes = from_hugging_face(config, "config.json")
    assert sizes["moe"] == {
        "experts": 256, "active": 8, "ffn": 2048, "shared_ffn": 2048, "dense_layers": 3, "every": 1,
    }  # fmt: skip
    assert sizes["mla"]["kv_rank"] == 512


def test_windows_of_a_configuration() -> None:
    sizes = {"sliding_window": 4096, "head_dim": 256}
    gemma = from_hugging_face(QWEN | sizes | {"model_type": "gemma2"}, "config.json")
    assert (gemma["family"], gemma["window"], gemma["window_every"]) == ("gemma2", 4096, 2)
    mistral = from_hugging_face(QWEN | sizes | {"model_type": "mistral"}, "config.json")
    assert mistral["window"] == 4096 and "window_every" not in mistral
    assert "window" not in from_hugging_face(QWEN | sizes, "config.json")


def test_qwen_uses_its_window_only_where_that_is_switched_on() -> None:
    """The first ``max_window_layers`` see everything."""
    on = QWEN | {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 21}
    sizes = from_hugging_face(on, "config.json")
    assert (sizes["window"], sizes["full_layers"]) == (4096, 21)
    for off in ({"max_window_layers": 28}, {"use_sliding_window": False}, {"max_window_layers": None}):
        assert "window" not in from_hugging_face(on | off, "config.json")


def test_layers_that_a_configuration_lists_one_by_one() -> None:
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    config = QWEN | {"model_type": "gemma3_text", "sliding_window": 512, "layer_types": kinds * 7}
    sizes = from_hugging_face(config, "config.json")
    assert (sizes["window"], sizes["full_layers"]) == (512, 7) and "window_every" not in sizes


def test_the_language_part_of_a_model_that_sees_images() -> None:
    text = {**QWEN, "model_type": "gemma3_text", "sliding_window": 1024, "sliding_window_pattern": 6}
    sizes = from_hugging_face({"model_type": "gemma3", "text_config": text}, "config.json")
    assert sizes["hidden"] == 3584 and sizes["qk_norm"] and sizes["window_every"] == 6
    with pytest.raises(InputError, match="text_config: hidden_size"):
        from_hugging_face({"model_type": "gemma3", "text_config": {"model_type": "llama"}}, "config.json")


def test_plain_and_gated_t5() -> None:
    t5 = {
        "model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_heads": 8, "num_layers": 6,
        "num_decoder_layers": 6, "vocab_size": 32128,
    }  # fmt: skip
    assert not from_hugging_face(t5, "config.json")["gated"]
    assert from_hugging_face(t5 | {"feed_forward_proj": "gated-gelu"}, "config.json")["gated"]
    assert from_hugging_face(t5, "config.json")["tied"]


def test_an_mt5_is_gated_and_untied_unless_its_configuration_says_otherwise() -> None:
    """The small one as published: 300 million parameters, most of them in its two tables."""
    small = {
        "model_type": "mt5", "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_heads": 6, "num_layers": 8,
        "num_decoder_layers": 8, "vocab_size": 250112,
    }  # fmt: skip
    sizes = from_hugging_face(small, "config.json")
    assert sizes["gated"] and not sizes["tied"]
    document = {"kind": "transformer", "batch_per_rank": 1, **sizes}
    config = parse_workload(document, "config.json").config
    assert isinstance(config, LanguageConfig)
    assert config.model.parameters() / 1e6 == pytest.approx(300, rel=0.005)


def test_an_unknown_configuration_is_refused_by_field() -> None:
    with pytest.raises(InputError, match="model_type"):
        from_hugging_face(QWEN | {"model_type": "mamba"}, "config.json")
    with pytest.raises(InputError, match="hidden_size"):
        from_hugging_face({k: v for k, v in QWEN.items() if k != "hidden_size"}, "config.json")


def test_a_folder_with_a_config_is_the_config(tmp_path: Path) -> None:
    folder = Path(__file__).parents[3] / "examples" / "huggingface"
    assert is_config(folder)
    assert read_config(folder) == read_config(folder / "config.json")
    assert not is_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("meta-llama/Llama-3.1-8B", "llama3.1-8b"), ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"), ("bert-base-uncased", "bert-base"),
        ("gpt2", "gpt2-124m"),
        ("google/gemma-2-9b-it", "gemma2-9b"), ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nemotron-nano-9b-v2"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4-scout"),
    ],
)  # fmt: skip
def test_names_of_hubs_are_known(name: str, meant: str) -> None:
    assert model_name(name) == meant


def test_a_version_with_another_structure_is_not_the_family() -> None:
    with pytest.raises(InputError, match="unknown model"):
        model_name("DeepSeek-V3.2")


def test_a_typo_gets_three_candidates() -> None:
    with pytest.raises(InputError, match=r"did you mean llama3-8b, llama3\.1-8b or"):
        model_name("lama3-8b")


def test_mpt_states_its_width_and_key_heads_in_its_own_words() -> None:
    sizes = from_hugging_face(
        {
            "model_type": "mpt", "d_model": 512, "n_heads": 8, "n_layers": 2, "vocab_size": 100,
            "expansion_ratio": 3, "attn_config": {"kv_n_heads": 2},
        },
        "config.json",
    )  # fmt: skip
    assert (sizes["ffn"], sizes["kv_heads"]) == (1536, 2)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("llama3-405b", "llama3.1-405b"), ("Llama-3.1-8B", "llama3.1-8b"), ("gpt3", "gpt3-175b"),
        ("gpt-3", "gpt3-175b"), ("bert", "bert-base"), ("mixtral", "mixtral-8x7b"), ("vit-l", "vit-l-16"),
        ("gemma2", "gemma2-9b"), ("qwen3-235b", "qwen3-235b-a22b"), ("deepseek-r1", "deepseek-v3"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"), ("gpt2-xl", "gpt2-1.5b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"), ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
    ],
)  # fmt: skip
def test_names_that_people_type_are_known(typed: str, meant: str) -> None:
    assert model_name(typed) == meant


def test_releases_of_a_model_that_differ_are_models_of_their_own() -> None:
    assert model_name("mistralai/Mistral-7B-v0.1") == "mistral-7b"
    assert model_name("mistralai/Mistral-7B-Instruct-v0.2") == "mistral-7b-v0.2"
    assert "window" not in shipped()[model_name("mistralai/Mistral-7B-v0.3")]


@pytest.mark.parametrize(
    ("name", "sequence", "noted"),
    [
        ("gpt2", 1024, False), ("gpt2", 8192, True), ("llama3-8b", 65536, True),
        ("llama3.1-8b", 65536, False), ("t5-v1.1-xl", 8192, False),
    ],
)  # fmt: skip
def test_a_sequence_beyond_the_positions_of_a_named_model_is_noted(
    name: str, sequence: int, noted: bool
) -> None:
    notes = load_model(name, [f"sequence={sequence}"]).config.notes
    assert any("positions of the model" in note for note in notes) is noted
