"""Models by name: the shipped descriptions, and Hugging Face's ``config.json``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from stepsight.errors import InputError
from stepsight.inputs import read_json, whole
from stepsight.records import Table, nearest, read_toml
from stepsight.workload.llm.unmodelled import not_modelled

_TYPES = {
    "llama": "llama",
    "mistral": "mistral",
    "mixtral": "mixtral",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "qwen2_moe": "qwen",
    "qwen3_moe": "qwen",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma2",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "kimi_k2": "deepseek",
    "gpt2": "gpt",
    "opt": "opt",
    "mpt": "mpt",
    "t5": "t5",
    "mt5": "t5",
    "vit": "vit",
    "bert": "bert",
    "gpt_oss": "mixtral",
    "internlm2": "llama",
    "phi3": "llama",
    "olmo2": "llama",
}
"""``model_type`` of a configuration to a family of ours."""


@cache
def shipped() -> Mapping[str, Table]:
    """The descriptions of well-known models; some have the sizes of another (``like``)."""
    with resources.as_file(resources.files("stepsight.workload.llm.catalogue") / "models.toml") as path:
        found = read_toml(path)
    return {name: found[sizes["like"]] if "like" in sizes else sizes for name, sizes in found.items()}


def is_name(path: str | Path) -> bool:
    """Whether it can only be meant as a model's name: ``llama3-8b``, a hub's ``meta-llama/Llama-3.1-8B``."""
    text = str(path)
    plain = text.count("/") <= 1 and not text.startswith((".", "/")) and not text.endswith((".toml", ".json"))
    return plain and not Path(path).exists() and not Path(text.partition("/")[0]).is_dir()


def model_name(name: str) -> str:
    """The shipped model that a name means, with or without its owner, dashes and suffixes on a hub."""
    known = {_letters(one): one for one in shipped()}
    short = name.lower().rpartition("/")[2].removeprefix("meta-")
    found, rest = known.get(_letters(short)) or _SHORT_NAMES.get(_letters(short)), short
    while found is None and _SUFFIX.search(rest):
        rest = _SUFFIX.sub("", rest)
        found = known.get(_letters(rest)) or _SHORT_NAMES.get(_letters(rest))
    if found is None:
        near = difflib.get_close_matches(short, shipped(), 3, 0.5)
        fix = f"did you mean {' or '.join(near)}?" if near else "give a config.json, or a workload file"
        raise InputError(name, "unknown model, and no such file", fix)
    return found


_SUFFIX = re.compile(r"-(?:hf|base|instruct|chat|it|pt|uncased|cased|1124|bf16|\d+k|v\d[\d.]*)$")
"""What hubs append to the names of the same sizes."""
_SHORT_NAMES = {
    "gpt2": "gpt2-124m", "gpt2medium": "gpt2-355m", "gpt2large": "gpt2-774m", "gpt2xl": "gpt2-1.5b",
    "gpt3": "gpt3-175b", "olmo211247b": "olmo2-7b", "bert": "bert-base", "t5": "t5-v1.1-large",
    "llama2": "llama2-7b", "llama3": "llama3-8b", "llama31": "llama3-8b", "llama3405b": "llama3.1-405b",
    "mistral": "mistral-7b-v0.3", "mistral7binstructv02": "mistral-7b-v0.2",
    "mistral7binstructv03": "mistral-7b-v0.3", "mixtral": "mixtral-8x7b", "mixtral8x": "mixtral-8x7b",
    "qwen2": "qwen2-7b", "qwen25": "qwen2.5-7b", "qwen3": "qwen3-8b", "qwen3235b": "qwen3-235b-a22b",
    "qwen330b": "qwen3-30b-a3b", "gemma": "gemma-7b", "gemma2": "gemma2-9b", "gemma3": "gemma3-4b",
    "nemotron3nano": "nemotron-3-nano-30b-a3b", "nemotronh": "nemotron-h-8b",
    "nemotron4340b": "nemotron-340b", "grok1314b": "grok-1", "llama4maverick400b": "llama4-maverick",
    "llama4scout109b": "llama4-scout", "deepseekv3671b": "deepseek-v3", "deepseek": "deepseek-v3",
    "deepseekr1": "deepseek-v3", "phi3": "phi-3-mini", "phi3mini4k": "phi-3-mini",
    "vit": "vit-b-16", "vitb": "vit-b-16", "vitl": "vit-l-16", "vith": "vit-h-14", "vitg": "vit-g-14",
}  # fmt: skip
"""Names that people type, letters and digits only; a family's name is its best-known size."""


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def shipped_sizes(name: str) -> Table:
    """The sizes of a well-known model."""
    return dict(shipped()[model_name(name)])


_COUNTS = (
    "hidden_size", "n_embd", "d_model", "num_attention_heads", "n_head", "n_heads", "num_heads",
    "num_hidden_layers", "n_layer", "n_layers", "num_decoder_layers", "num_layers", "intermediate_size",
    "n_inner", "ffn_dim", "d_ff", "vocab_size", "max_position_embeddings", "n_positions", "max_seq_len",
    "num_key_value_heads", "head_dim", "d_kv", "patch_size", "image_size", "num_local_experts",
    "n_routed_experts", "num_experts", "moe_intermediate_size", "num_experts_per_tok", "n_shared_experts",
    "shared_expert_intermediate_size", "first_k_dense_replace", "decoder_sparse_step", "q_lora_rank",
    "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "sliding_window",
    "sliding_window_pattern", "max_window_layers", "num_nextn_predict_layers", "n_group", "topk_group",
    "expansion_ratio",
)  # fmt: skip
"""Fields of a configuration that are whole numbers where they are given."""
_READ = frozenset({*_COUNTS, "tie_word_embeddings", "feed_forward_proj", "use_sliding_window", "layer_types"})
"""Fields of a configuration that count."""


def named(name: str) -> Table:
    """A workload around a shipped description."""
    return _workload(shipped_sizes(name), model_name(name))


def read_config(path: str | Path) -> Table:
    """A workload around a Hugging Face ``config.json``."""
    path = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    where = str(path)
    config = read_json(path, "pass a model's config.json")
    if not isinstance(config, dict) or "model_type" not in config:
        raise InputError(where, "has no model_type", "pass a Hugging Face config.json, or a captured step")
    return _workload(from_hugging_face(config, where), str(config.get("_name_or_path") or Path(where).stem))


def is_config(path: str | Path) -> bool:
    """Whether this is read as a model's configuration: any JSON, so that its mistakes are named as such, or a
    folder with a config.json, as models are stored."""
    return Path(path).suffix == ".json" or (Path(path) / "config.json").is_file()


def _workload(sizes: Table, name: str) -> Table:
    return {
        "kind": "transformer",
        "name": Path(name).name,
        **sizes,
        "training": {},
        "parallel": {},
    }


def from_hugging_face(config: Mapping[str, Any], where: str) -> Table:
    """The sizes of a Hugging Face configuration in our words."""
    kind = str(config["model_type"])
    if kind not in _TYPES and isinstance(config.get("text_config"), dict):  # images or sound next to it
        text = from_hugging_face({"model_type": kind, **config["text_config"]}, f"{where}: text_config")
        return _with_unmodelled(text, not_modelled(config, config["text_config"]))
    config = {**config, **{key: whole(config[key], f"{where}: {key}", least=0) for key in _COUNTS
                           if config.get(key) is not None}}  # fmt: skip
    if kind not in _TYPES:
        raise InputError(f"{where}: model_type", f"unknown {kind!r}", nearest(kind, _TYPES))
    family = _TYPES[kind]

    def first(*keys: str, default: Any = None) -> Any:
        for key in keys:
            if config.get(key) is not None:
                return config[key]
        if default is None:
            raise InputError(f"{where}: {keys[0]}", "is missing", "add it to the configuration")
        return default

    hidden = first("hidden_size", "n_embd", "d_model")
    heads = first("num_attention_heads", "n_head", "n_heads", "num_heads")
    sizes: Table = {
        "family": family,
        "layers": first("num_hidden_layers", "n_layer", "n_layers", "num_decoder_layers", "num_layers"),
        "hidden": hidden,
        "heads": heads,
        "ffn": first(
            "intermediate_size",
            "n_inner",
            "ffn_dim",
            "d_ff",
            default=int(config.get("expansion_ratio") or 4) * hidden,
        ),
        "vocab": first("vocab_size", default=1000),
        "sequence": min(first("max_position_embeddings", "n_positions", "max_seq_len", default=2048), 8192),
    }
    kv = config.get("num_key_value_heads") or _mpt_kv_heads(config, where)
    if kv:
        sizes["kv_heads"] = kv
    dim = config.get("head_dim") or config.get("d_kv")
    if dim:
        sizes["head_dim"] = dim
    if "tie_word_embeddings" in config:
        sizes["tied"] = bool(config["tie_word_embeddings"])
    if kind in ("qwen3", "qwen3_moe", "gemma3_text", "olmo2"):
        sizes["qk_norm"] = True
    if family == "t5":
        sizes["encoder_layers"] = first("num_layers")
        sizes["gated"] = "gated" in str(config.get("feed_forward_proj", _MT5 if kind == "mt5" else "relu"))
        sizes.setdefault("tied", kind != "mt5")
    if family == "vit":
        patch, size = first("patch_size"), first("image_size")
        sizes |= {"patch_values": 3 * patch * patch, "sequence": (size // patch) ** 2 + 1, "vocab": 1000}
        sizes.pop("tied", None)
    longest = first("max_position_embeddings", "n_positions", "max_seq_len", default=0)
    if longest and family not in ("t5", "vit"):  # T5's positions are relative
        sizes["longest_sequence"] = longest
    try:
        sizes |= _window(config, sizes["layers"]) | _moe(config) | _mla(config)
        if config.get("num_nextn_predict_layers"):
            sizes["mtp_layers"] = config["num_nextn_predict_layers"]
    except KeyError as missing:
        raise InputError(f"{where}: {missing.args[0]}", "is missing", "add it to the configuration") from None
    return _with_unmodelled(sizes, not_modelled(config, _READ))


def _with_unmodelled(sizes: Table, found: list[str]) -> Table:
    listed = [*sizes.get("not_modelled", ()), *found]
    return sizes | ({"not_modelled": list(dict.fromkeys(listed))} if listed else {})


_MT5 = "gated-gelu"
"""What an mT5 is where its configuration does not say; its head is untied, too."""
_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}
"""Of this many layers one sees everything, where a configuration does not list its layers."""
_ALL_WINDOWED = ("mistral", "mixtral", "phi3")
_SWITCHED = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")
"""Models that state a window and use it only with ``use_sliding_window``, behind ``max_window_layers``."""
_QWEN_FULL_LAYERS = 28
"""``max_window_layers`` where a configuration leaves it out (Qwen2Config)."""


def _window(config: Mapping[str, Any], layers: int) -> Table:
    """Sliding-window attention, and which layers see everything."""
    kind, window, listed = config["model_type"], config.get("sliding_window"), config.get("layer_types")
    switched_on = kind in _SWITCHED and config.get("use_sliding_window") is True
    if not window or not (switched_on or kind in _FULL_EVERY or kind in _ALL_WINDOWED):
        return {}
    if isinstance(listed, list) and listed:
        full = listed.count("full_attention")
    elif switched_on:
        full = min(config.get("max_window_layers") or _QWEN_FULL_LAYERS, layers)
    else:
        every = config.get("sliding_window_pattern") or _FULL_EVERY.get(kind, 1)
        return {"window": window, **({"window_every": every} if every > 1 else {})}
    if full >= layers:
        return {}
    return {"window": window, **({"full_layers": full} if full else {})}


def _mpt_kv_heads(config: Mapping[str, Any], where: str) -> int | None:
    """MPT states them, and multi-query attention, in a table of its own."""
    attention = config.get("attn_config")
    if config["model_type"] != "mpt" or not isinstance(attention, Mapping):
        return None
    if attention.get("attn_type") == "multiquery_attention":
        return 1
    stated = attention.get("kv_n_heads")
    return None if stated is None else whole(stated, f"{where}: attn_config.kv_n_heads", least=1)


def _moe(config: Mapping[str, Any]) -> Table:
    count = config.get("num_local_experts") or config.get("n_routed_experts") or config.get("num_experts")
    if not count:
        return {}
    ffn = config.get("moe_intermediate_size") or config["intermediate_size"]
    return {
        "moe": {
            "experts": count,
            "active": config.get("num_experts_per_tok", 2),
            "ffn": ffn,
            "shared_ffn": ffn * (config.get("n_shared_experts") or 0)
            or config.get("shared_expert_intermediate_size", 0),
            "dense_layers": config.get("first_k_dense_replace", 0),
            "every": config.get("decoder_sparse_step", 1),
            **_groups(config),
            **({"bias": True} if config.get("model_type") == "gpt_oss" else {}),
        }
    }


def _groups(config: Mapping[str, Any]) -> Table:
    """Routing that is limited to groups of experts (DeepSeek)."""
    groups, active = config.get("n_group") or 1, config.get("topk_group") or 1
    return {"groups": groups, "active_groups": active} if groups > active else {}


def _mla(config: Mapping[str, Any]) -> Table:
    if not config.get("kv_lora_rank"):
        return {}
    return {
        "mla": {
            "q_rank": config.get("q_lora_rank") or 0,
            "kv_rank": config["kv_lora_rank"],
            "nope_dim": config["qk_nope_head_dim"],
            "rope_dim": config["qk_rope_head_dim"],
            "v_dim": config["v_head_dim"],
        }
    }
