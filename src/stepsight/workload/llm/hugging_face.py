"""A Hugging Face ``config.json`` in our words, and what it states that is not modelled."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from stepsight.errors import InputError
from stepsight.inputs import whole
from stepsight.records import Table, nearest, read_toml

_READ = ("tie_word_embeddings", "feed_forward_proj", "use_sliding_window", "layer_types")
"""Fields that count and are no whole numbers."""
LAYERS = ("full_attention", "sliding_attention")
"""Kinds of layers that are modelled."""
ONE_OF = ("moe_layer_freq",)
"""Of these, one is none."""


@cache
def _words() -> Table:
    return read_toml(Path(__file__).with_name("catalogue") / "hugging_face.toml")


def from_hugging_face(config: Mapping[str, Any], where: str) -> Table:
    """The sizes of a Hugging Face configuration in our words."""
    kind, words = str(config["model_type"]), _words()
    families = words["families"]
    if kind not in families and isinstance(config.get("text_config"), dict):  # images or sound next to it
        text = from_hugging_face({"model_type": kind, **config["text_config"]}, f"{where}: text_config")
        return _with_unmodelled(text, not_modelled(config, config["text_config"]))
    config = {**config, **{key: whole(config[key], f"{where}: {key}", least=0) for key in words["counts"]
                           if config.get(key) is not None}}  # fmt: skip
    if kind not in families:
        raise InputError(f"{where}: model_type", f"unknown {kind!r}", nearest(kind, families))
    family = families[kind]

    def first(name: str, default: Any = None) -> Any:
        """The size that we call so."""
        keys = words["sizes"].get(name, [name])
        found = next((config[key] for key in keys if config.get(key) is not None), default)
        if found is None:
            raise InputError(f"{where}: {keys[0]}", "is missing", "add it to the configuration")
        return found

    hidden, longest = first("hidden"), first("longest_sequence", 0)
    sizes: Table = {
        "family": family,
        "layers": first("layers"),
        "hidden": hidden,
        "heads": first("heads"),
        "ffn": first("ffn", int(config.get("expansion_ratio") or 4) * hidden),
        "vocab": first("vocab", 1000),
        "sequence": min(first("longest_sequence", 2048), 8192),
    }
    stated = {
        "kv_heads": config.get("num_key_value_heads") or _mpt_kv_heads(config, where),
        "head_dim": config.get("head_dim") or config.get("d_kv"),
        "qk_norm": kind in words["qk_norm"],
        "longest_sequence": family not in ("t5", "vit") and longest,  # T5's positions are relative
        "mtp_layers": config.get("num_nextn_predict_layers"),
    }
    sizes |= {name: value for name, value in stated.items() if value}
    if "tie_word_embeddings" in config and family != "vit":
        sizes["tied"] = bool(config["tie_word_embeddings"])
    if family == "t5":
        sizes["encoder_layers"] = first("num_layers")
        sizes["gated"] = "gated" in str(config.get("feed_forward_proj", _MT5 if kind == "mt5" else "relu"))
        sizes.setdefault("tied", kind != "mt5")
    if family == "vit":
        patch, size = first("patch_size"), first("image_size")
        sizes |= {"patch_values": 3 * patch * patch, "sequence": (size // patch) ** 2 + 1, "vocab": 1000}
    try:
        sizes |= _window(config, sizes["layers"]) | _moe(config) | _mla(config)
    except KeyError as missing:
        raise InputError(f"{where}: {missing.args[0]}", "is missing", "add it to the configuration") from None
    return _with_unmodelled(sizes, not_modelled(config, {*words["counts"], *_READ}))


def _with_unmodelled(sizes: Table, found: list[str]) -> Table:
    listed = [*sizes.get("not_modelled", ()), *found]
    return sizes | ({"not_modelled": list(dict.fromkeys(listed))} if listed else {})


_MT5 = "gated-gelu"
"""What an mT5 is where its configuration does not say; its head is untied, too."""
_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}
"""Of this many layers one sees everything, where a configuration does not list its layers."""
_ALL_WINDOWED = ("mistral", "mixtral", "phi3")
_SWITCHED = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")
"""Models that state a window and use it only with ``use_sliding_window``, after ``max_window_layers``."""
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


def not_modelled(config: Mapping[str, Any], read: Collection[str]) -> list[str]:
    """Fields that change the cost or look as if they did, ``names (what is meant)``; ``read``: those that are
    honoured."""
    words, meant, others = _words(), dict[str, list[str]](), list[str]()
    named, same_as = words["not_modelled"], words["same_as"]
    harmless = re.compile("|".join(words["harmless"]))
    for key, value in config.items():
        if key in read or _switched_off(key, value) or (key in same_as and value == config.get(same_as[key])):
            continue
        if key in named:
            meant.setdefault(named[key], []).append(key)
        elif not isinstance(value, str) and not harmless.fullmatch(key):
            others.append(key)
    return [
        *(f"{' and '.join(keys)} ({what})" for what, keys in meant.items()),
        *_unknown_layers(config),
        *others,
    ]


def _unknown_layers(config: Mapping[str, Any]) -> list[str]:
    """Kinds of layers that are timed as ordinary attention, in a configuration that lists them."""
    listed = config.get("layer_types")
    kinds = dict.fromkeys(kind for kind in listed if kind not in LAYERS) if isinstance(listed, list) else {}
    return [f"layer_types ({', '.join(map(str, kinds))}: timed as attention)"] if kinds else []


def _switched_off(key: str, value: object) -> bool:
    """Nothing, none of it, or one where one is none; an unknown count of one adds nothing, either."""
    if key in _words()["not_modelled"] and key not in ONE_OF:
        return not value
    return not value or (value == 1 and value is not True)
