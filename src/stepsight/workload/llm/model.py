"""The sizes of a language model, how many parameters its parts hold, and what its family fixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepsight.workload.fields import Fields


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: of ``count`` experts ``active`` see each token.

    ``ffn`` is one expert's width, ``shared_ffn`` that of the experts every token passes through (zero:
    none). The first ``dense_layers`` layers have an ordinary MLP, and after them every ``every``-th layer
    has experts. A token's experts lie in ``active_groups`` of ``groups`` equal parts (zero: anywhere).
    ``imbalance`` is the busiest rank's tokens over the mean. ``capacity_factor``: every expert sees this many
    times its mean share of tokens, more are dropped and fewer padded (zero: no limit). ``bias``: experts have
    biases and a clamped activation (GPT-OSS).
    """

    count: int
    active: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0
    every: int = 1
    groups: int = 0
    active_groups: int = 0
    imbalance: float = 1.0
    capacity_factor: float = 0.0
    bias: bool = False

    @property
    def load(self) -> float:
        """Tokens of the busiest rank over the mean."""
        return self.capacity_factor or self.imbalance


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """DeepSeek's attention through low-rank projections; ``q_rank`` zero: queries are projected directly."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True)
class Mamba:
    """A Mamba-2 mixer: ``heads`` of ``head_dim`` values with a ``state`` each, whose B and C are shared by
    ``groups`` of heads; ``conv``: taps of the convolution; ``chunk``: tokens of the scan's chunks."""

    heads: int
    head_dim: int = 64
    state: int = 128
    groups: int = 8
    conv: int = 4
    chunk: int = 128

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def mixed(self) -> int:
        """Values of a token that the convolution sees: inputs, B and C."""
        return self.inner + 2 * self.groups * self.state


BLOCKS = {"M": (False, "mamba"), "*": (False, "attention"), "-": (False, "mlp"), "E": (True, "mlp")}
"""Layers of a hybrid model by the letters of its pattern (Nemotron-H): whether it has experts, and the only
block that it has."""


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """Plain sizes, whatever family they came from.

    ``gated``: the MLP has two input projections (SwiGLU, GeGLU). ``norm``: layer or rms. ``positions``:
    rotary, learned, alibi or none. ``window``: tokens that sliding-window attention sees (zero: all);
    ``window_every``: of this many layers one sees everything, ``full_layers``: this many layers in all do,
    where that is no pattern. ``causal``: no token sees the future.
    ``encoder_layers`` are those of an encoder in front (T5), whose output every decoder layer attends to.
    ``patches``: an image model (ViT), whose tokens are patches of this many values each. ``head``: lm ends in
    the vocabulary, none stops at the last hidden state. ``mtp_layers``: layers after the last that each
    predict one more token (DeepSeek-V3), with the head and the embedding shared.
    ``pattern``: a hybrid model, whose layers have one block each (`BLOCKS`); ``mamba``: its mixers.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    norm: str = "rms"
    norms_per_layer: int = 2
    positions: str = "rotary"
    bias: bool = False
    tied: bool = False
    window: int = 0
    window_every: int = 1
    full_layers: int = 0
    causal: bool = True
    experts: Experts | None = None
    latent: LatentAttention | None = None
    encoder_layers: int = 0
    patches: int = 0
    qk_norm: bool = False
    head: str = "lm"
    mtp_layers: int = 0
    pattern: str = ""
    mamba: Mamba | None = None

    def layer_kind(self, layer: int) -> tuple[bool, str]:
        """Whether that layer has experts, and its only block in a hybrid model (else empty)."""
        return BLOCKS[self.pattern[layer]] if self.pattern else (self.has_experts(layer), "")

    def has_experts(self, layer: int) -> bool:
        """Whether the MLP of that layer is a mixture of experts."""
        e = self.experts
        return e is not None and layer >= e.dense_layers and (layer - e.dense_layers) % e.every == 0

    @property
    def unwindowed_layers(self) -> int:
        """Layers whose attention sees the whole sequence."""
        if self.pattern:
            return self.pattern.count("*")
        if not self.window:
            return self.layers
        if self.full_layers:
            return min(self.full_layers, self.layers)
        return self.layers // self.window_every if self.window_every > 1 else 0

    @property
    def attention_parameters(self) -> int:
        """One layer's attention."""
        h, d = self.hidden, self.head_dim
        if self.latent is not None:
            a = self.latent
            q_dim = self.heads * (a.nope_dim + a.rope_dim)
            q = h * q_dim if a.q_rank == 0 else h * a.q_rank + a.q_rank * q_dim
            kv = h * (a.kv_rank + a.rope_dim) + a.kv_rank * self.heads * (a.nope_dim + a.v_dim)
            return q + kv + self.heads * a.v_dim * h
        width = (self.heads + 2 * self.kv_heads) * d
        bias = (width + h) if self.bias else 0
        return h * width + self.heads * d * h + bias

    @property
    def mamba_parameters(self) -> int:
        """One Mamba-2 mixer."""
        x = self.mamba
        if x is None:
            return 0
        vectors = x.mixed * (x.conv + 1) + x.inner + 3 * x.heads
        return self.hidden * (2 * x.inner + x.mixed + x.heads) + vectors

    @property
    def mlp_parameters(self) -> int:
        """One ordinary layer's MLP."""
        return self._mlp(self.ffn)

    @property
    def expert_parameters(self) -> int:
        """One expert."""
        return self._mlp(self.experts.ffn) if self.experts else 0

    def _mlp(self, width: int) -> int:
        bias = (width + self.hidden) if self.bias else 0
        return self.hidden * width * (3 if self.gated else 2) + bias

    @property
    def norm_parameters(self) -> int:
        """One layer's norms."""
        return self.norms_per_layer * self.hidden * (2 if self.norm == "layer" else 1)

    @property
    def mtp_projection_parameters(self) -> int:
        """What joins the hidden state with the next token's embedding: two norms and a projection."""
        return 2 * self.hidden * self.hidden + 2 * self.hidden

    def layer_parameters(self, layer: int, *, active: bool = False) -> int:
        """One layer; ``active``: only what one token passes through."""
        experts, only = self.layer_kind(layer)
        if only == "mamba":
            return self.mamba_parameters + self.norm_parameters
        rest = (0 if only == "mlp" else self.attention_parameters) + self.norm_parameters
        e = self.experts
        if e is None or not experts:
            return rest + (0 if only == "attention" else self.mlp_parameters)
        shared = self._mlp(e.shared_ffn) if e.shared_ffn else 0
        return (
            rest + shared + self.hidden * e.count + (e.active if active else e.count) * self.expert_parameters
        )

    @property
    def embedding_parameters(self) -> int:
        """The input table (and learned positions are counted with it by the caller who knows the length)."""
        return (self.patches if self.patches else self.vocab) * self.hidden

    @property
    def head_parameters(self) -> int:
        """The output projection; zero where it is the input table."""
        return 0 if self.tied else self.vocab * self.hidden

    def parameters(self, *, active: bool = False) -> int:
        """All of them but those that predict further tokens; ``active``: what one token passes through."""
        layers = sum(self.layer_parameters(i, active=active) for i in range(self.layers))
        cross = self.layers * (self.attention_parameters + self.hidden) if self.encoder_layers else 0
        encoder = self.encoder_layers * (
            self.attention_parameters + self.mlp_parameters + self.norm_parameters
        )
        return layers + cross + encoder + self.embedding_parameters + self.head_parameters + self.hidden

    def flops_per_token(self, sequence: int, *, frozen: bool = False) -> float:
        """Forward and backward FLOPs a token as the PaLM paper counts them for MFU: 6 a parameter of the
        products, and attention over the whole sequence, causal or not, or over the window in layers that have
        one. ``frozen``: weights have no gradients, which are 2 of the 6."""
        products = self.parameters(active=True) - (0 if self.tied else self.embedding_parameters)
        further = self.layer_parameters(self.layers - 1, active=True) + self.mtp_projection_parameters
        products += self.mtp_layers * (further + self.vocab * self.hidden)  # with the head once more
        width = self.heads * (self.latent.nope_dim + self.latent.rope_dim if self.latent else self.head_dim)
        full = self.unwindowed_layers
        seen = full * sequence + (0 if self.pattern else self.layers - full) * min(self.window, sequence)
        attention = 12 * width * (seen + self.mtp_layers * sequence)
        return (4.0 if frozen else 6.0) * products + attention


_LAYER_NORM = {"norm": "layer", "gated": False, "bias": True, "positions": "learned"}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "deepseek": {},
    "qwen": {},
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


SWITCHES = ("gated", "bias", "tied", "qk_norm")
"""What a description may state otherwise than its family has it."""


def read_model(fields: Fields) -> LanguageModel:
    """The sizes of a model from the top level of its description."""
    family = fields.choice("family", tuple(FAMILIES))
    usual = {name: value for name, value in FAMILIES[family].items() if name != "dropout"}
    hidden, heads = fields.integer("hidden"), fields.integer("heads")
    if not fields.has("head_dim") and hidden % heads:
        raise fields.fail(
            "heads", f"{heads} heads do not divide hidden = {hidden}", "use a divisor, or head_dim"
        )
    kv_heads = fields.integer("kv_heads", heads)
    if heads % kv_heads:
        raise fields.fail("kv_heads", f"{kv_heads} do not divide heads = {heads}", "use a divisor")
    pattern = _pattern(fields)
    flags = {name: fields.flag(name, usual.get(name, name == "gated")) for name in SWITCHES}
    model = fields.record(
        LanguageModel,
        usual
        | flags
        | {
            "layers": fields.integer("layers", len(pattern)) if pattern else fields.integer("layers"),
            "kv_heads": kv_heads,
            "head_dim": fields.integer("head_dim", hidden // heads),
            "ffn": fields.integer("ffn", 4 * hidden),
            "experts": _experts(fields),
            "latent": _latent(fields),
            "encoder_layers": fields.integer("encoder_layers", 0, least=0) if family == "t5" else 0,
            "patches": fields.integer("patch_values", 588) if family == "vit" else 0,
            "pattern": pattern,
            "mamba": _mamba(fields),
            "norms_per_layer": usual.get("norms_per_layer", 2),
            "causal": usual.get("causal", True),
        },
        {"head": ("lm", "none")},
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
    count, imbalance = moe.integer("experts"), moe.number("imbalance", 1.0, least=1.0)
    found = moe.record(Experts, {"count": count, "imbalance": imbalance})
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
    found = mamba.record(Mamba, {})
    mamba.finish()
    return found


def _latent(fields: Fields) -> LatentAttention | None:
    if not fields.has("mla"):
        return None
    mla = fields.section("mla")
    found = mla.record(LatentAttention, {"q_rank": mla.integer("q_rank", 0, least=0)})
    mla.finish()
    return found
