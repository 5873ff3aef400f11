"""A language model's training as its description states it: model, batch, training, layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.hardware.spec import GpuSpec, half_type
from stepsight.records import nearest
from stepsight.workload.fields import Fields
from stepsight.workload.llm.checks import check
from stepsight.workload.llm.layout import Layout, read_layout
from stepsight.workload.llm.model import FAMILIES, LanguageModel, read_model, usual_dropout
from stepsight.workload.llm.recipe import SIZES, Case, Framework, Recipe, families, recipe_of
from stepsight.workload.operators.optimizers import UPDATES

C = area("language")

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
HALF = PRECISIONS[2:]
"""Of these, those whose parameters are in half precision."""
FP4 = ("nvfp4", "mxfp4")
"""Other names of fp4."""
GRADIENTS = ("fp32", "half")
"""The type in which gradients are accumulated and reduced."""
ADAPTERS = ("none", "lora", "qlora", "dora")
CHOICES = {
    "optimizer": tuple(UPDATES), "loss": ("cross_entropy", "none"), "optimizer_state": ("fp32", "half"),
    "adapter_targets": ("attention", "mlp", "all"), "fp8_scaling": ("delayed", "current", "row", "block"),
    "offload": ("none", "optimizer"), "zero_grad": ("none", "zero"),
}  # fmt: skip
"""Of fields of ``training``."""
FROZEN_WEIGHTS = ("half", "fp8", "nf4")
"""How adapters' frozen weights are stored: as they are computed with, in fp8, or in 4 bits (QLoRA)."""
FROZEN_BYTES = {"fp8": 1.0, "nf4": 0.516}
"""Bytes per frozen weight; nf4 with doubly quantised block scales (Dettmers et al. 2023)."""
RECOMPUTE = ("none", "full", "selective")
MODULES = ("core_attn", "layernorm", "mlp", "mlp_act", "mla_up_proj", "moe", "moe_act", "shared_experts")
"""What Megatron's selective recomputation may name (``--recompute-modules``)."""
ATTENTION = ("eager", "fused", "efficient", "flash", "flash1", "flash2", "flash3", "cudnn")


def module_lists(model: LanguageModel) -> list[tuple[str, ...]]:
    """Lists of Megatron's ``--recompute-modules`` that are worth a trial, cheapest first: activation
    functions, norms too, whole MLPs."""
    cheap = ("moe_act" if model.experts else "mlp_act",)
    latent = [(*cheap, "layernorm", "mla_up_proj")] if model.latent else []
    return [cheap, (*cheap, "layernorm"), *latent, ("mlp",)]


@dataclass(frozen=True, slots=True)
class LanguageTraining:
    """How the model is trained.

    ``recompute``: none; full (a layer keeps only its input; ``recompute_layers`` layers per stage, all if
    zero); selective (Megatron: core attention is recomputed; others: everything but GEMMs); modules (those
    of ``recompute_modules``).
    ``attention``: eager (operator by operator), fused (Megatron's scale-mask-softmax kernel), flash1 to 3
    (flash: 2). ``precision``: fp8 and fp4 (NVFP4) are the type of GEMMs, everything else is in bf16.
    ``optimizer_state``: fp32, or half: parameters and state in half precision without fp32 copies (bf16-true,
    full bf16).
    ``master_weights``: half-precision parameters with fp32 copies in the optimizer; without them fp32
    parameters are cast for each pass. ``fused_norm``: norms in one kernel, if the framework does not do that
    by default.
    ``adapters``: only low-rank adapters of rank ``adapter_rank`` on attention, MLP or both are trained; the
    frozen weights need no gradients and are stored as ``frozen_weights`` says.
    ``fp8_weights``: with fp8, weights are kept in fp8 (with their transpose) and gathered in it; otherwise
    bf16 weights and their fp8 casts are both there.
    ``fp8_activations``: inputs of activation functions are stored in fp8 for the backward pass.
    ``expandable_segments``: the caching allocator joins blocks (PYTORCH_CUDA_ALLOC_CONF).
    ``loss_scaling``: gradients are unscaled and checked for infinities before the update (fp16).
    ``offload``: "optimizer" puts the optimizer state and update on the CPU.
    ``fused_experts``: grouped GEMMs fuse activation and fp8 cast.
    ``fp8_scaling``: delayed, current (an extra pass to find amax), row (a cast for each direction) or block
    (MXFP8, DeepSeek's).
    ``loss_share``: fraction of tokens that reach the LM head (BERT's masked tokens).
    ``cuda_graphs``: each pass is launched as one CUDA graph.
    ``fused_optimizer``, ``zero_grad``, ``read_loss``, ``synchronize``: of plain PyTorch (`Training`).
    """

    precision: str = "bf16"
    attention: str = "flash2"
    recompute: str = "none"
    recompute_layers: int = 0
    recompute_modules: tuple[str, ...] = ()
    optimizer: str = "adamw"
    dropout: float = 0.0
    loss: str = "cross_entropy"
    clipping: bool = True
    master_weights: bool = True
    optimizer_state: str = "fp32"
    compiled: bool = False
    fused_norm: bool = True
    adapters: str = "none"
    adapter_rank: int = 16
    adapter_targets: str = "attention"
    frozen_weights: str = "half"
    fp8_weights: bool = False
    fp8_activations: bool = False
    expandable_segments: bool = False
    loss_scaling: bool = False
    offload: str = "none"
    cuda_graphs: bool = False
    fused_experts: bool = False
    fp8_scaling: str = "delayed"
    loss_share: float = 1.0
    fused_optimizer: bool = False
    zero_grad: str = "none"
    read_loss: bool = False
    synchronize: bool = False

    @property
    def dtype(self) -> str:
        """The type of activations."""
        return {"fp8": "bf16", "fp4": "bf16", "tf32": "fp32"}.get(self.precision, self.precision)

    @property
    def product_dtype(self) -> str:
        """The type of GEMMs."""
        return self.precision

    @property
    def wide_product(self) -> str:
        """The type of GEMMs that stay out of fp8: attention's and the head's."""
        return "tf32" if self.precision == "tf32" else self.dtype

    @property
    def quantised(self) -> bool:
        """Whether GEMMs compute in fewer bits than the activations have."""
        return self.precision in ("fp8", "fp4")

    @property
    def half(self) -> bool:
        return self.dtype in ("fp16", "bf16")

    @property
    def state_bytes(self) -> int:
        """Of each tensor that the optimizer keeps for a parameter."""
        return 2 if self.half and self.optimizer_state == "half" else 4

    @property
    def copies_weights(self) -> bool:
        """Whether the optimizer updates fp32 copies of half-precision parameters."""
        return self.half and self.master_weights and self.state_bytes == 4

    @property
    def frozen(self) -> bool:
        """Whether only adapters are trained."""
        return self.adapters != "none"

    def adapts(self, part: str) -> bool:
        """Whether the projections of ``part`` (attention or mlp) have adapters."""
        return self.frozen and self.adapter_targets in (part, "all")


@dataclass(frozen=True, slots=True)
class LanguageConfig:
    """Model, batch and layout.

    ``batch_per_rank``: sequences that a data-parallel replica sees per step; ``states_batch``: whether the
    description gives them; else `DEFAULT_BATCH`, and as many as fill a pipeline, stand in.
    ``document_tokens``: tokens of each document in a packed sequence, inside which attention stays (zero: the
    whole sequence is one).
    ``notes``: what the description says that the answer does not hold. ``recipe`` names the training stack,
    ``differs`` lists the settings that the description states otherwise than the recipe does. ``left_open``:
    settings that the platform decides (``attention``, ``recompute``, ``micro_batch``; `resolved`).
    """

    name: str
    family: str
    model: LanguageModel
    sequence: int
    batch_per_rank: int
    training: LanguageTraining
    layout: Layout
    framework: Framework
    document_tokens: int = 0
    states_batch: bool = field(default=True, compare=False)
    source: str = field(default="", compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    recipe: str = field(default="", compare=False)
    differs: tuple[str, ...] = field(default=(), compare=False)
    left_open: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    @property
    def micro_batch(self) -> int:
        """Sequences in one micro-batch."""
        return self.batch_per_rank // self.layout.micro_batches

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one rank."""
        return self.micro_batch * self.sequence // self.layout.context

    @property
    def attended(self) -> int:
        """Tokens of the sequence inside which attention looks."""
        return self.document_tokens or self.sequence

    @property
    def tokens_per_step(self) -> int:
        """Tokens that the whole job sees in a step."""
        return self.batch_per_rank * self.layout.data * self.sequence

    @property
    def host_profile(self) -> str:
        """Whose host work its launches cost (`stepsight.overheads.frameworks`)."""
        return "compiled" if self.framework.plain and self.training.compiled else self.framework.host_profile

    @property
    def writes_out_gelu(self) -> bool:
        """Whether GELU runs operator by operator, by its tanh formula (``gelu_new`` of transformers)."""
        eager = self.framework.plain and not self.training.compiled
        return eager and self.family in ("gpt", "gpt2") and not self.model.gated

    @property
    def trained_share(self) -> float:
        """Of the model's parameters, those that are trained."""
        if not self.training.frozen:
            return 1.0
        m, width = self.model, 0
        if self.training.adapts("attention"):
            width += 2 * m.hidden + (2 * m.heads + 2 * m.kv_heads) * m.head_dim
        if self.training.adapts("mlp"):
            width += 2 * m.hidden + (3 if m.gated else 2) * m.ffn
        return m.layers * self.training.adapter_rank * width / m.parameters()

    @property
    def padded_vocab(self) -> int:
        """Megatron pads the vocabulary to a multiple of 128 on every tensor rank (its fork for DeepSpeed only
        where there are several)."""
        pads = self.framework.pads_vocab and (self.layout.tensor > 1 or self.framework.pads_whole_vocab)
        step = (128 if pads else 1) * self.layout.tensor
        return -(-self.model.vocab // step) * step


def read_language(document: Mapping[str, Any], source: str, gpu: GpuSpec | None = None) -> LanguageConfig:
    """The file's fields, checked; ``gpu``: where the attention kernel depends on it."""
    fields = Fields(document, source)
    fields.choice("kind", ("transformer",), "transformer")
    family = fields.choice("family", tuple(FAMILIES))
    fields.know("moe", "mla", "mamba")
    model = read_model(fields)
    recipe = chosen_recipe(document, source).of(_asked(document, model))
    training_fields = fields.section("training", recipe.training)
    parallel = fields.section("parallel", recipe.parallel)
    framework = replace(
        recipe.framework, gradients=training_fields.choice("gradients", GRADIENTS, recipe.framework.gradients)
    )
    for key in ("framework", "recipe"):
        training_fields.anything(key, "")
    training = _training(training_fields, family, recipe, gpu)
    sequence = fields.integer("sequence")
    document_tokens = fields.integer("document_tokens", 0, least=0)
    if document_tokens and sequence % document_tokens:
        raise fields.fail(
            "document_tokens", f"{document_tokens} does not divide sequence = {sequence}", "use a divisor"
        )
    layout, batch = read_layout(fields, parallel, recipe, framework, model, half=training.half)
    name = fields.text("name", Path(source).stem)
    notes = _notes(fields, sequence)
    sections = {"training": training_fields, "parallel": parallel, "": fields}
    for section in sections.values():
        section.finish(sections)
    stated = fields.has("global_batch") or fields.has("batch_per_rank")
    stated |= parallel.has("micro_batch") and layout.pipeline == 1
    config = LanguageConfig(
        name, family, model, sequence, batch, training, layout, framework, document_tokens, stated, source,
        notes, recipe.name,
        (*_differences("training", training_fields), *_differences("parallel", parallel)),
        _left_open(fields, training_fields, parallel),
    )  # fmt: skip
    check(config, parallel, training_fields)
    of_gpu = recipe.on(case_of(config, ""))
    given = {f"training.{key}" for key in training_fields.values}
    given |= {f"parallel.{key}" for key in parallel.values}
    return replace(config, left_open=config.left_open | (of_gpu.keys() - given))


def _asked(document: Mapping[str, Any], model: LanguageModel) -> Case:
    """What a recipe's exceptions depend on without a GPU, as a description states it."""
    training, parallel = document.get("training", {}), document.get("parallel", {})
    sizes = tuple(getattr(model, name) for name in SIZES)
    adapters = training.get("adapters", "none") not in ("none", False)
    return Case(sizes, model.experts is not None, adapters, parallel.get("pipeline", 1) != 1)


def case_of(c: LanguageConfig, gpu: str) -> Case:
    """What a recipe's exceptions depend on, of a configuration on a GPU."""
    sizes, scaled = tuple(getattr(c.model, name) for name in SIZES), c.training.precision == "fp8"
    return Case(
        sizes, c.model.experts is not None, c.training.frozen, c.layout.pipeline > 1,
        c.training.fp8_scaling if scaled else "", gpu,
    )  # fmt: skip


def _differences(section: str, fields: Fields) -> list[str]:
    """Fields that the description states and the recipe has otherwise."""
    return [
        f"{section}.{key}={value}"
        for key, value in fields.values.items()
        if key in fields.defaults and (3 if value == "fsdp" else value) != fields.defaults[key]
    ]


def _left_open(fields: Fields, training: Fields, parallel: Fields) -> frozenset[str]:
    """What the platform decides: half precision, the attention kernel, recomputation of a model that nothing
    spreads, and without a pipeline the micro-batch."""
    found = {name for name in ("attention", "precision") if not training.has(name)}
    stated = any(training.has(name) for name in ("recompute", "recipe", "framework"))
    if not stated and not parallel.has("zero") and all(parallel.integer(name, 1) == 1 for name in SPLITS):
        found.add("recompute")
    if (
        fields.has("global_batch")
        and not parallel.has("micro_batch")
        and parallel.integer("pipeline", 1) == 1
    ):
        found.add("micro_batch")
    return frozenset(found)


def with_choices_of(c: LanguageConfig, gpu: GpuSpec) -> LanguageConfig:
    """The configuration with what nobody stated as the GPU has it: a half precision with tensor cores, and
    the attention kernel that the recipe picks there."""
    recipe, training = recipe_of(c.recipe), c.training
    if "precision" in c.left_open and training.precision == "bf16":
        precision = half_type(gpu)
        scaled = precision == "fp16" and bool(recipe.training.get("loss_scaling", True))
        training = replace(training, precision=precision, loss_scaling=scaled)
    if "attention" in c.left_open:
        attention = _usual_attention(recipe, training.precision, c.family, gpu)
        training = replace(training, attention=attention)
    layout, found = c.layout, recipe.on(case_of(c, gpu.name))
    for path in found.keys() & c.left_open:
        section, _, name = path.partition(".")
        if name == "recompute":
            training = replace(training, **_recomputed(found[path]))
        elif section == "training":
            training = replace(training, **{name: found[path]})
        elif c.layout.expert > 1:
            layout = replace(layout, **{name: found[path]})
    return c if (training, layout) == (c.training, c.layout) else replace(c, training=training, layout=layout)


def _recomputed(value: Any) -> dict[str, Any]:
    """What ``recompute`` says: a list of modules, a number of layers, or a word."""
    modules = tuple(map(str, value)) if isinstance(value, list) else (value,) if value in MODULES else ()
    if isinstance(value, int):  # also a flag
        value, layers = "full" if value else "none", 0 if isinstance(value, bool) else value
    else:
        value, layers = "modules" if modules else "none" if value == [] else str(value), 0
    return {"recompute": value, "recompute_layers": layers, "recompute_modules": modules}


def _usual_attention(recipe: Recipe, precision: str, family: str, gpu: GpuSpec | None) -> str:
    """The recipe's kernel; fused ones compute in half precision only, and none does what XLNet needs."""
    plain = precision in PLAIN_PRECISIONS or family == "xlnet"
    return "eager" if plain else recipe.attention(gpu)


def _notes(fields: Fields, sequence: int) -> tuple[str, ...]:
    """What a configuration states and nobody models, and a sequence that the model has no positions for."""
    listed = fields.anything("not_modelled", [])
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise fields.fail("not_modelled", f"must be a list of names, not {listed!r}", 'write ["name", …]')
    longest = fields.integer("longest_sequence", 0, least=0)
    notes = [f"not modelled: {', '.join(listed)}"] if listed else []
    if 0 < longest < sequence:
        notes.append(f"sequence: {sequence:,} tokens are beyond the {longest:,} positions of the model")
    return tuple(notes)


PLAIN_PRECISIONS = ("fp32", "tf32")
PLAIN_FIELDS = {
    "fused_optimizer": (True, "the update is fused"),
    "zero_grad": ("zero", "gradients are zeroed"),
    "read_loss": (False, "the loss is not read"),
    "synchronize": (False, "the host does not wait at the end of a step"),
}
"""Fields of ``training`` that only plain PyTorch has, and what other frameworks do in any case."""


SPLITS = ("tensor", "pipeline", "context", "expert")
"""Fields of ``parallel`` that say over how many ranks a model is spread."""


def usual_framework(document: Mapping[str, Any]) -> str:
    """The framework of a description that names none, whichever way its model was named.

    Fully sharded training is torchtitan's, and so is a model of `SHARDED_FROM` parameters that nothing
    spreads, unless it has experts, which Megatron spreads; in fp32, with eager attention or with adapters it
    is Hugging Face's. A smaller model in fp32, with eager attention or with a field that only plain PyTorch
    has is plain PyTorch's, and everything else Megatron's. A value that asks for what happens anyway decides
    nothing.
    """
    training, parallel = document.get("training") or {}, document.get("parallel") or {}
    if not isinstance(training, Mapping) or not isinstance(parallel, Mapping):
        return "megatron"  # reading the fields says what is wrong
    full = training.get("precision") in PLAIN_PRECISIONS or training.get("attention") == "eager"
    spread = any(parallel.get(name, 1) != 1 for name in SPLITS)
    if document.get("head", "lm") != "lm" or document.get("family") == "xlnet":
        return "eager"
    if training.get("adapters", "none") not in ("none", False) and not spread:
        return "hf"
    if str(parallel.get("zero", 0)) in ("3", "fsdp"):
        return "torchtitan"
    large = not spread and "zero" not in parallel and _parameters(document) >= C.SHARDED_FROM
    if large and (full or "moe" not in document or "data" in parallel):
        return "hf" if full else "torchtitan"
    plain = full or any(training.get(k, anyway) != anyway for k, (anyway, _) in PLAIN_FIELDS.items())
    return "eager" if plain else "megatron"


def _parameters(document: Mapping[str, Any]) -> float:
    try:
        return read_model(Fields(document, "")).parameters()
    except InputError:  # reading the fields says what is wrong
        return 0.0


def chosen_recipe(document: Mapping[str, Any], where: str) -> Recipe:
    """The recipe that a description names, the newest of the framework that it names, or the usual one."""
    training = Fields(document.get("training", {}), f"{where}: [training]")
    if training.has("recipe"):
        found = recipe_of(training.text("recipe", ""), training.at("recipe"))
        named = training.text("framework", found.family)
        if named not in (found.family, found.framework.name):
            raise training.fail(
                "framework",
                f"is {named}, and recipe {found.name} is of {found.family}",
                "give one of the two",
            )
        return found
    usual = usual_framework(document)
    return families()[training.choice("framework", tuple(families()), usual)]


def _training(fields: Fields, family: str, recipe: Recipe, gpu: GpuSpec | None) -> LanguageTraining:
    again = _recomputed(fields.anything("recompute", "none"))
    if again["recompute_layers"]:
        fields.integer("recompute", least=0)
    for name in again["recompute_modules"]:
        if name not in MODULES:
            raise fields.fail("recompute", f"unknown module {name!r}", nearest(name, MODULES))
    if again["recompute"] not in RECOMPUTE and not again["recompute_modules"]:
        raise fields.fail(
            "recompute",
            f"unknown {again['recompute']!r}",
            f"one of {', '.join(RECOMPUTE)}, a list of modules, or a number of layers",
        )
    other_name = str(fields.anything("precision", "bf16")) in FP4
    precision = "fp4" if other_name else fields.choice("precision", PRECISIONS, "bf16")
    adapters = fields.anything("adapters", "none")
    if isinstance(adapters, bool):
        adapters = "lora" if adapters else "none"
    if adapters not in ADAPTERS:
        raise fields.fail("adapters", f"unknown {adapters!r}", f"one of {', '.join(ADAPTERS)}, or true")
    fields.know("attention")
    attention = fields.choice("attention", ATTENTION, "flash2") if fields.has("attention") else None
    half_state = fields.choice("optimizer_state", CHOICES["optimizer_state"], "fp32") == "half"
    masters = fields.flag("master_weights", precision in HALF)
    quantised = precision in ("fp8", "fp4")
    known = {
        "precision": precision,
        "attention": attention or _usual_attention(recipe, precision, family, gpu),
        **again,
        "dropout": fields.number("dropout", usual_dropout(family), most=0.99),
        "clipping": fields.flag("clip_gradients", True),
        "master_weights": masters or (half_state and not fields.has("master_weights")),
        "compiled": fields.flag("compile", False),
        "adapters": adapters,
        "frozen_weights": _frozen_weights(fields, adapters),
        "fp8_weights": fields.flag("fp8_weights", False) and quantised,
        "fp8_activations": fields.flag("fp8_activations", False) and quantised,
        "loss_scaling": fields.flag("loss_scaling", precision == "fp16"),
        "cuda_graphs": fields.flag("cuda_graph", fields.flag("cuda_graphs", False)),
        "loss_share": fields.number("loss_share", 1.0, least=0.001, most=1.0),
    }
    return fields.record(LanguageTraining, known, CHOICES)


def _frozen_weights(fields: Fields, adapters: str) -> str:
    """As stated or as the recipe stores them; QLoRA's are in 4 bits."""
    stated = fields.choice("frozen_weights", FROZEN_WEIGHTS, "half")
    if adapters == "none":
        return "half"
    return "nf4" if adapters == "qlora" and not fields.has("frozen_weights") else stated
