"""What a Hugging Face configuration states that changes a step's cost and is not modelled."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

NAMED = {
    "quantization_config": "parameters are taken in the precision of the training",
    "vision_config": "the images' encoder",
    "audio_config": "the encoder of sound",
    "attn_logit_softcapping": "attention whose scores are capped",
    "mlp_only_layers": "layers without experts in between",
    "moe_layer_freq": "which layers have experts",
    "attention_bias": "biases of attention's projections",
    "mlp_bias": "biases of the MLP's projections",
    "qkv_bias": "biases of attention's projections",
    "clip_qkv": "queries, keys and values are clamped",
    "reorder_and_upcast_attn": "attention's scores in fp32",
}
"""Fields that are known to change the cost, and what the answer lacks or takes for granted."""
LAYERS = ("full_attention", "sliding_attention")
"""Kinds of layers that are modelled."""
ONE_OF = ("moe_layer_freq",)
"""Of these, one is none."""
SAME_AS = {
    "word_embed_proj_dim": "hidden_size",
    "num_decoder_layers": "num_layers",
    "sliding_window_size": "sliding_window",
}
"""Fields that say nothing new where they equal another."""
_HARMLESS = re.compile(
    r"""
    _.* | model_type | architectures | auto_map | .*name.* | .*version.* | .*dtype | torchscript
    | text_config | .*token.* | bos.* | eos.* | pad_.* | prefix | forced_.* | decoder_start.*
    | type_vocab_size | n_ctx | max_.*position.* | .*drop.* | .*noise | .*eps | .*epsilon | .*std
    | .*range | .*init.* | layer_norm_.* | do_layer_norm_before | rope_.* | rotary_.* | partial_rotary.*
    | relative_attention_.* | .*theta | .*base_freq | original_.*
    | .*(?:alpha|beta|coef|scalar|factor|multiplier|scale|scaling|limit|temperature|penalty|decay|momentum)
    | .*_bias_.* | no_bias | scale_.* | hidden_act.* | router_.* | norm_topk.* | seq_aux | experts_per_token
    | ep_size | pretraining_tp | gradient_checkpointing | attn_.*implementation | attn_config | use_bias
    | learned_pos_emb | num_channels | encoder_stride | mm_.*
    | cross_attention_hidden_size | id2label | label2id | num_labels | task_.* | finetuning_task
    | problem_type | summary_.* | pruned_heads | is_.* | tie_.* | use_cache | cache_.* | output_.*
    | return_.* | generation.* | default_.* | max_length | min_length | num_beams.* | do_sample | top_[kp]
    | chunk_size.* | keys_to_ignore.*
    """,
    re.VERBOSE,
)
"""Names of fields that no cost hangs on: tokens, dropout's and norms' figures, types, labels, generation."""


def not_modelled(config: Mapping[str, Any], read: Collection[str]) -> list[str]:
    """Fields that change the cost or look as if they did, ``names (what is meant)``; ``read``: those that are
    honoured."""
    meant: dict[str, list[str]] = {}
    others = []
    for key, value in config.items():
        if key in read or _switched_off(key, value) or (key in SAME_AS and value == config.get(SAME_AS[key])):
            continue
        if key in NAMED:
            meant.setdefault(NAMED[key], []).append(key)
        elif not isinstance(value, str) and not _HARMLESS.fullmatch(key):
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
    if key in NAMED and key not in ONE_OF:
        return not value
    return not value or (value == 1 and value is not True)
