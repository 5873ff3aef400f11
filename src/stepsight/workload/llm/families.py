"""The families of language models: what a family fixes, and what its description must say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepsight.workload.fields import Fields
from stepsight.workload.llm.model import BLOCKS, Experts, LanguageModel, LatentAttention, Mamba

_LAYER_NORM = {"norm": "layer", "gated": False, "bias": True, "positions": "learned"}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "deepseek": {},
    "qwen": {"qk_norm": False},
    "gemma": {"tied": True},
    "gemma2": {"tied": True, "norms_per_layer": 4},
    "gpt": {**_LAYER_NORM, "tied": True, "dropout": 0.1},
    "gpt2": {**_LAYER_NORM, "tied": True, "dropout": 0.1},
    "opt": {**_LAYER_NORM, "tied": True, "dropout": 0.1},
    "megatron": {**_LAYER_NORM, "tied": True, "dropout": 0.1},
    "mpt": {**_LAYER_NORM, "bias": False, "positions": "alibi", "tied": True},
    "bert": {**_LAYER_NORM, "causal": False, "tied": True, "dropout": 0.1},
    "xlnet": {**_LAYER_NORM, "causal": False, "positions": "relative", "tied": True, "dropout": 0.1},
    "nemotron_h": {"positions": "none", "gated": False, "norms_per_layer": 1},
    "t5": {"positions": "none", "tied": True, "dropout": 0.1, "gated": True},
    "vit": {**_LAYER_NORM, "causal": False},
}
"""Anything not listed is as in Llama: RMS norm, rotary positions, SwiGLU, no biases, untied head."""


def read_model(fields: Fields) -> LanguageModel:
    """The sizes of a model from the top level of its description."""
    family = fields.choice("family", tuple(FAMILIES))
    usual = dict(FAMILIES[family])
    hidden, heads = fields.integer("hidden"), fields.integer("heads")
    if not fields.has("head_dim") and hidden % heads:
        raise fields.fail(
            "heads", f"{heads} heads do not divide hidden = {hidden}", "use a divisor, or head_dim"
        )
    kv_heads = fields.integer("kv_heads", heads)
    if heads % kv_heads:
        raise fields.fail("kv_heads", f"{kv_heads} do not divide heads = {heads}", "use a divisor")
    gated = fields.flag("gated", usual.get("gated", True))
    pattern = _pattern(fields)
    model = LanguageModel(
        layers=fields.integer("layers", len(pattern)) if pattern else fields.integer("layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.integer("head_dim", hidden // heads),
        ffn=fields.integer("ffn", 4 * hidden),
        vocab=fields.integer("vocab"),
        gated=gated,
        norm=usual.get("norm", "rms"),
        norms_per_layer=usual.get("norms_per_layer", 2),
        positions=usual.get("positions", "rotary"),
        bias=fields.flag("bias", usual.get("bias", False)),
        tied=fields.flag("tied", usual.get("tied", False)),
        window=fields.integer("window", 0, least=0),
        window_every=fields.integer("window_every", 1),
        full_layers=fields.integer("full_layers", 0, least=0),
        causal=usual.get("causal", True),
        experts=_experts(fields),
        latent=_latent(fields),
        encoder_layers=fields.integer("encoder_layers", 0, least=0) if family == "t5" else 0,
        patches=fields.integer("patch_values", 588) if family == "vit" else 0,
        qk_norm=fields.flag("qk_norm", usual.get("qk_norm", False)),
        head=fields.choice("head", ("lm", "none"), "lm"),
        mtp_layers=fields.integer("mtp_layers", 0, least=0),
        pattern=pattern,
        mamba=_mamba(fields),
    )
    if pattern and model.layers != len(pattern):
        raise fields.fail("pattern", f"{len(pattern)} letters for {model.layers} layers", "give one each")
    for letter, block, found in (("M", "mamba", model.mamba), ("E", "moe", model.experts)):
        if letter in pattern and found is None:
            raise fields.fail(block, f"is missing, and the pattern has {letter}", "state its sizes")
    if model.mtp_layers and (model.encoder_layers or model.head == "none" or not model.causal):
        raise fields.fail("mtp_layers", "only a decoder with a head predicts further tokens", "leave it out")
    if model.full_layers and (not model.window or model.window_every > 1):
        raise fields.fail(
            "full_layers", "counts the layers that see beyond a window", "give window, and no window_every"
        )
    if family == "vit" and model.vocab < 1:
        raise fields.fail("vocab", "an image model's vocab is its number of classes", "for example 1000")
    return model


def usual_dropout(family: str) -> float:
    return float(FAMILIES[family].get("dropout", 0.0))


def _experts(fields: Fields) -> Experts | None:
    if not fields.has("moe"):
        return None
    moe = fields.section("moe")
    found = Experts(
        count=moe.integer("experts"),
        active=moe.integer("active"),
        ffn=moe.integer("ffn"),
        shared_ffn=moe.integer("shared_ffn", 0, least=0),
        dense_layers=moe.integer("dense_layers", 0, least=0),
        every=moe.integer("every", 1),
        groups=moe.integer("groups", 0, least=0),
        active_groups=moe.integer("active_groups", 0, least=0),
        imbalance=moe.number("imbalance", 1.0, least=1.0),
        capacity_factor=moe.number("capacity_factor", 0.0, least=0.0),
        bias=moe.flag("bias", False),
    )
    moe.finish()
    layers = fields.values.get("layers")
    if isinstance(layers, int) and found.dense_layers >= layers:
        raise moe.fail("dense_layers", f"of {layers} layers none would have experts", "use fewer")
    if found.active > found.count:
        raise moe.fail("active", f"{found.active} of {found.count} experts cannot be active", "use fewer")
    if found.capacity_factor and moe.has("imbalance"):
        raise moe.fail("imbalance", "has no effect: a capacity_factor gives experts equally many", "drop it")
    if bool(found.groups) != bool(found.active_groups) or found.active_groups > found.groups:
        raise moe.fail(
            "active_groups",
            f"{found.active_groups} of {found.groups} groups of experts cannot be active",
            "give groups and at most as many active_groups, or neither",
        )
    return found


def _pattern(fields: Fields) -> str:
    """The letters of a hybrid model's layers."""
    pattern = fields.text("pattern", "")
    if unknown := sorted(set(pattern) - set(BLOCKS)):
        raise fields.fail("pattern", f"unknown {''.join(unknown)!r}", f"letters are {', '.join(BLOCKS)}")
    return pattern


def _mamba(fields: Fields) -> Mamba | None:
    if not fields.has("mamba"):
        return None
    mamba = fields.section("mamba")
    found = Mamba(
        heads=mamba.integer("heads"),
        head_dim=mamba.integer("head_dim", 64),
        state=mamba.integer("state", 128),
        groups=mamba.integer("groups", 8),
        conv=mamba.integer("conv", 4),
        chunk=mamba.integer("chunk", 128),
    )
    mamba.finish()
    return found


def _latent(fields: Fields) -> LatentAttention | None:
    if not fields.has("mla"):
        return None
    mla = fields.section("mla")
    found = LatentAttention(
        q_rank=mla.integer("q_rank", 0, least=0),
        kv_rank=mla.integer("kv_rank"),
        nope_dim=mla.integer("nope_dim"),
        rope_dim=mla.integer("rope_dim"),
        v_dim=mla.integer("v_dim"),
    )
    mla.finish()
    return found
