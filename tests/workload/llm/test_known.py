"""Models by name and by Hugging Face configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepsight.errors import InputError
from stepsight.workload.files import load_model, load_workload
from stepsight.workload.llm.known import from_hugging_face, is_config, read_config, shipped
from stepsight.workload.llm.workload import LanguageWorkload

PARAMETERS_B = {
    "llama2-7b": 6.74, "llama3-8b": 8.03, "llama3-70b": 70.6, "llama3.1-405b": 405.9, "mixtral-8x7b": 46.7,
    "qwen3-30b-a3b": 30.5, "qwen3-235b-a22b": 235, "deepseek-v3": 671, "deepseek-v2": 236, "mpt-7b": 6.65,
    "gpt3-175b": 175, "gemma-7b": 8.54, "opt-13b": 12.9,
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
