"""Recipes: what a training stack does unless its user asks for something else, one data file each.

A recipe states three things: defaults of the fields that a workload may set (``[training]``, ``[parallel]``),
facts of the stack's code (``[code]``), and whose host work its launches cost (``host_profile``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.hardware.spec import GpuSpec
from stepsight.inputs import read_text
from stepsight.kernels.attention import NO_FLASH, version_on
from stepsight.overheads.frameworks import profiles
from stepsight.records import Table, nearest, parse_toml, read_toml, record

C = area("language")

TRAINING_FIELDS = frozenset({
    "precision", "attention", "recompute", "optimizer", "clip_gradients", "master_weights", "compile",
    "optimizer_state",
    "fused_norm", "fused_experts", "cuda_graphs", "fp8_scaling", "gradients", "reduce",
    "loss_scaling", "adapters", "adapter_targets", "frozen_weights", "fp8_weights", "fp8_activations",
    "expandable_segments",
})  # fmt: skip
"""Fields of ``training`` that a recipe may give a default."""
PARALLEL_FIELDS = frozenset({
    "sequence_parallel", "async_tensor", "context_kind", "context_balanced", "expert_dispatch",
    "expert_overlap", "zero", "reshard", "prefetch", "overlap_gradients", "bucket_mb",
    "bucket_million_parameters", "bucket_million_per_replica", "layers_per_virtual_stage",
    "schedule",
})  # fmt: skip
"""The same of ``parallel``."""


ENDS = 2
"""Pieces of a pipeline that need no layer: the embedding's and the head's."""


@dataclass(frozen=True, slots=True)
class Framework:
    """Facts of a stack's code that no field of a workload changes.

    ``fused_rotary``, ``fused_mlp`` (activation and multiply), ``fused_loss``: one kernel instead of several.
    ``half_loss``: a fused loss reads logits and writes their gradient in half precision. ``loss_metrics``:
    training metrics that evaluate the loss from the logits once more in every micro-batch.
    ``gradients``: the type in which micro-batches are summed (fp32 or half). ``wgrad_accumulates``:
    the weight-gradient GEMM adds to the sum itself. ``host_waits``: the host waits for the device at every
    message between stages. ``flat_reduce``: one buffer
    for all gradients instead of buckets. ``pads_whole_vocab``: the vocabulary is padded on one rank, too.
    ``overlaps_sums``: the sum of an input's gradient over the tensor group overlaps with the weight-gradient
    GEMM.
    ``separate_gate``: a gated MLP's two first GEMMs each sum their input's gradient over the tensor group.
    ``keeps_gathered``: with sequence parallelism the gathered input of a GEMM is kept for the backward
    pass, which then need not gather it again.
    ``shards_gradients``: what shards the optimizer state shards gradients as well, after every micro-batch
    or, in a pipeline, after the last one: without a pipeline there is no ZeRO-1.
    ``gathers_late``: ZeRO-2 gathers the updated parameters after the optimizer step, not during the forward
    pass.
    ``broadcasts_parameters``: ZeRO-1 returns parameters by a broadcast from every rank, not by gathers.
    ``sums_copies``: ZeRO-1 sums fp32 copies of all gradients on every rank, which then keeps its share.
    ``flat_gather``: ZeRO-1 gathers all parameters in one message, flattened into one buffer.
    ``gathers_pile_up``: with sequence parallelism the gathered input of a GEMM is dropped after it, but stays
    in the allocator until the communication stream has passed it; a host that runs ahead queues several.
    ``sharded_loss``: the loss of a split vocabulary is used where one rank holds all of it, too.
    ``gathers_logits``: the loss sees the whole vocabulary on every tensor rank.
    ``reads_sizes``: the sizes of every micro-batch are broadcast and read back by the host, which waits for
    the device (Megatron's mpu.broadcast_data).
    ``reads_counts``: exchanges and GEMMs of experts are sized by token counts that the host reads from the
    device; not in XLA's programs, whose shapes are fixed.
    ``scatters_messages``: without sequence parallelism each tensor rank sends its part of a message, and the
    receivers gather it (Megatron's scatter_gather_tensors_in_pipeline, DeepSpeed's is_pipe_partitioned).
    ``selects_products``: selective recomputation is torch's, which keeps what GEMMs and attention give;
    without it, Megatron's, which drops what lies inside attention.
    ``cuts_products``: asynchronous tensor parallelism splits GEMMs to overlap them with communication.
    ``stages_by_cost``: layers are spread over the stages of a pipeline by cost, not by number.
    ``weights_inside_experts``: the router's weights are applied before an expert's last product, whose output
    then need not be kept.
    ``fused_routing``: the router's and the permutation's small operators are fused.
    ``grouped_experts``: one grouped GEMM for all experts of a rank, instead of one each.
    ``kept_4bit_inputs``: how often the inputs of 4-bit GEMMs are held: bitsandbytes before 0.43.2 kept them
    until the graph was dropped (pull request 1270), which a loop that holds its loss does only in the next
    step. ``widens_ends``: with 4-bit weights embedding and head are cast to fp32 (PEFT's
    prepare_model_for_kbit_training).
    ``plain``: modules as PyTorch runs them, every operator a launch of its own (`layer.EXTRA_LAUNCHES`).
    ``host_profile``: whose host work a launch costs (`stepsight.overheads.frameworks`).
    """

    name: str
    host_profile: str = "eager"
    fused_rotary: bool = False
    fused_mlp: bool = False
    fused_loss: bool = False
    half_loss: bool = False
    loss_metrics: int = 0
    gradients: str = "half"
    wgrad_accumulates: bool = False
    host_waits: bool = False
    overlaps_sums: bool = True
    separate_gate: bool = False
    keeps_gathered: bool = False
    gathers_late: bool = False
    shards_gradients: bool = False
    broadcasts_parameters: bool = False
    sums_copies: bool = False
    flat_reduce: bool = False
    flat_gather: bool = False
    pads_vocab: bool = False
    pads_whole_vocab: bool = True
    scatters_messages: bool = False
    reads_sizes: bool = False
    reads_counts: bool = True
    gathers_pile_up: bool = False
    sharded_loss: bool = False
    gathers_logits: bool = False
    selects_products: bool = True
    cuts_products: bool = True
    grouped_experts: bool = True
    fused_routing: bool = False
    stages_by_cost: bool = False
    weights_inside_experts: bool = False
    kept_4bit_inputs: int = 0
    widens_ends: bool = False
    plain: bool = False


SIZES = ("layers", "hidden", "heads", "vocab")
"""What tells the shipped models of the ``models`` of an exception apart, whichever way a model was named."""


@dataclass(frozen=True, slots=True)
class Case:
    """What the exceptions of a recipe depend on: a model's sizes, whether it has experts, only adapters are
    trained and there is a pipeline; the scaling of fp8, and the GPU where it is known."""

    sizes: tuple[object, ...]
    experts: bool
    adapters: bool
    pipeline: bool
    scaling: str = ""
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class Exceptional:
    """Settings that a recipe has otherwise for some jobs (``[[where]]``): shipped models by name, GPUs by the
    beginning of theirs, models with experts or without. What the GPU decides may be some fields alone
    (`OF_GPU`)."""

    models: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    experts: bool | None = None
    adapters: bool | None = None
    pipeline: bool | None = None
    scaling: str = ""
    training: dict[str, Any] = field(default_factory=dict)
    parallel: dict[str, Any] = field(default_factory=dict)

    def holds(self, case: Case) -> bool:
        if self.models and case.sizes not in [_sizes_of(name) for name in self.models]:
            return False
        if case.gpu and self.gpus and not case.gpu.startswith(self.gpus):
            return False
        kinds = ((self.experts, case.experts), (self.adapters, case.adapters), (self.pipeline, case.pipeline))
        if any(asked is not None and asked != found for asked, found in kinds):
            return False
        return not self.scaling or not case.gpu or self.scaling == case.scaling

    @property
    def words(self) -> str:
        """The jobs it is for."""
        kinds = (
            (self.experts, "experts"), (self.adapters, "adapters"), (self.pipeline, "a pipeline"),
        )  # fmt: skip
        parts = [", ".join(self.models)] if self.models else []
        parts += [f"{'with' if found else 'without'} {name}" for found, name in kinds if found is not None]
        parts += [f"{self.scaling} scaling"] if self.scaling else []
        return ", ".join([*parts, f"on {', '.join(self.gpus)}"] if self.gpus else parts)

    @property
    def settings(self) -> dict[str, Any]:
        """What it changes, by paths."""
        sections = (("training", self.training), ("parallel", self.parallel))
        return {f"{name}.{key}": value for name, section in sections for key, value in section.items()}


OF_GPU = frozenset({
    "training.recompute", "training.cuda_graphs", "training.fused_experts", "parallel.expert_dispatch",
    "parallel.expert_overlap",
})  # fmt: skip
"""Settings that an exception for some GPUs may change."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One training stack at one version.

    ``family`` is what ``training.framework`` names; ``framework`` the code that it runs (NeMo: Megatron's).
    ``attention_on``: the attention kernel by GPU architecture, where it is not ``training["attention"]``.
    """

    name: str
    family: str
    framework: Framework
    version: str
    date: str
    source: str
    training: Mapping[str, Any] = field(default_factory=dict)
    parallel: Mapping[str, Any] = field(default_factory=dict)
    attention_on: Mapping[str, str] = field(default_factory=dict)
    exceptions: tuple[Exceptional, ...] = ()

    def of(self, case: Case) -> Recipe:
        """The recipe with what it has otherwise for such a job, as far as no GPU decides that."""
        found = [one for one in self.exceptions if not one.gpus and not one.scaling and one.holds(case)]
        if not found:
            return self
        training, parallel = dict(self.training), dict(self.parallel)
        for one in found:
            training |= one.training
            parallel |= one.parallel
        return replace(self, training=training, parallel=parallel)

    def settings(self, case: Case) -> dict[str, Any]:
        """All its settings for a job on a GPU, by paths."""
        mine = self.of(case)
        found = {f"training.{key}": value for key, value in mine.training.items()}
        found |= {f"parallel.{key}": value for key, value in mine.parallel.items()}
        return found | self.on(case)

    def on(self, case: Case) -> dict[str, Any]:
        """The settings that a GPU decides, by their paths; of a case without a GPU: those that one may."""
        found: dict[str, Any] = {}
        decided = {
            name for one in self.exceptions if (one.gpus or one.scaling) and one.holds(case)
            for name in one.settings
        }  # fmt: skip
        for one in self.exceptions if decided else ():
            if one.holds(case):
                found |= {name: value for name, value in one.settings.items() if name in decided}
        return found

    @property
    def borrows(self) -> str:
        """Whose host profile it takes, where its code has none of its own."""
        profile = self.framework.host_profile
        return "" if profile == self.framework.name else profile

    def attention(self, gpu: GpuSpec | None) -> str:
        """The attention kernel that the stack picks on a GPU."""
        usual = str(self.training.get("attention", "flash2"))
        if gpu is None:
            return usual
        usual = self.attention_on.get(gpu.architecture, usual)
        return version_on(usual, gpu.architecture) if gpu.architecture in NO_FLASH else usual

    def virtual_stages(self, layers: int, pipeline: int, micro_batches: int) -> int:
        """Pieces of each stage where nobody states them: as many as give each the recipe's layers, or fewer
        layers while the pipeline would stand idle for more than `IDLE` and pieces stay of one length; one
        where the schedule cannot be interleaved."""
        most = int(self.parallel.get("layers_per_virtual_stage", 0))
        if not most or pipeline == 1 or micro_batches % pipeline:
            return 1
        found = 0
        for each in range(most, 0, -1):
            pieces = max(1, min(round(layers / pipeline / each), (layers + ENDS) // pipeline))
            longest = math.ceil(layers / pipeline / pieces)
            if not found or longest * pipeline * pieces <= C.UNEVEN_PIECES * (layers + ENDS):
                found = pieces
            if pipeline - 1 <= C.IDLE_PIPELINE * micro_batches * found:
                break
        return found

    def bucket_mb(self, replicas: int, gradient_bytes: int) -> float:
        """Gradient buckets: a size, or Megatron's rule of this many parameters, more with many replicas."""
        million = float(self.parallel.get("bucket_million_parameters", 0.0))
        if not million:
            return float(self.parallel.get("bucket_mb", 25.0))
        more = float(self.parallel.get("bucket_million_per_replica", 0.0)) * replicas
        return gradient_bytes * max(million, more)


@cache
def _shipped() -> Mapping[str, Table]:
    return {path.stem: read_toml(path) for path in sorted(Path(__file__).with_name("recipes").glob("*.toml"))}


@cache
def recipes() -> Mapping[str, Recipe]:
    """The shipped ones by name, oldest first in each family."""
    tables = _shipped()
    found = [_recipe(name, _inherited(name, tables), f"recipe {name}") for name in tables]
    return {one.name: one for one in sorted(found, key=lambda r: (r.family, r.date, r.name))}


@cache
def families() -> Mapping[str, Recipe]:
    """The newest recipe of each framework."""
    return {one.family: one for one in recipes().values()}


def recipe_of(name: str, where: str = "training.recipe") -> Recipe:
    """A shipped recipe, the newest of a framework, or a user's own file, whose name is its path."""
    known = _known()
    if name in known:
        return known[name]
    if name.endswith(".toml"):
        return _own(name, read_text(name))
    fix = f"{nearest(name, known)} `stepsight recipes` lists all; your own is a .toml file"
    raise InputError(where, f"unknown recipe {name!r}", fix)


@cache
def _known() -> Mapping[str, Recipe]:
    return {**families(), **recipes()}


@lru_cache(maxsize=64)
def _own(path: str, content: str) -> Recipe:
    """A user's file: what it does not state is as in the recipe that it names with ``like``."""
    table = parse_toml(content, path)
    like, shipped = table.get("like"), _shipped()
    if not isinstance(like, str) or like not in shipped:
        raise InputError(f"{path}: like", "names no shipped recipe", f"start from one: {', '.join(shipped)}")
    return _recipe(path, _inherited(path, {**shipped, path: {"source": path, **table}}), path)


def _inherited(name: str, tables: Mapping[str, Table]) -> Table:
    table = tables[name]
    if "like" not in table:
        return table
    above = _inherited(str(table["like"]), tables)
    merged: Table = {**above, **{k: v for k, v in table.items() if k != "like"}}
    merged["where"] = [*above.get("where", []), *table.get("where", [])]
    for section in ("training", "parallel", "code", "attention_on"):
        merged[section] = {**above.get(section, {}), **table.get(section, {})}
    return merged


@dataclass(frozen=True, slots=True)
class _File:
    """The fields of a recipe's file."""

    family: str
    version: str
    date: str
    source: str
    host_profile: str
    framework: str = ""
    training: dict[str, Any] = field(default_factory=dict)
    parallel: dict[str, Any] = field(default_factory=dict)
    attention_on: dict[str, str] = field(default_factory=dict)
    code: dict[str, Any] = field(default_factory=dict)
    where: list[dict[str, Any]] = field(default_factory=list)


@cache
def _sizes_of(name: str) -> tuple[object, ...]:
    """The sizes of a shipped model."""
    shipped = read_toml(Path(__file__).parent / "catalogue" / "models.toml")
    sizes = {"layers": len(shipped[name].get("pattern", "")), **shipped[name]}
    return tuple(sizes[key] for key in SIZES)


def _exception(table: Table, where: str) -> Exceptional:
    found = record(Exceptional, table, f"{where}: [[where]]")
    for name in found.settings if found.gpus or found.scaling else ():
        if name not in OF_GPU:
            raise InputError(f"{where}: [[where]]: {name}", "no GPU decides this", nearest(name, OF_GPU))
    return found


def _recipe(name: str, table: Mapping[str, Any], where: str) -> Recipe:
    file = record(_File, table, where)
    exceptions = tuple(_exception(one, where) for one in file.where)
    for section, known in (("training", TRAINING_FIELDS), ("parallel", PARALLEL_FIELDS)):
        for key in [key for one in (file, *exceptions) for key in getattr(one, section)]:
            if key not in known:
                raise InputError(f"{where}: [{section}]: {key}", "unknown field", nearest(key, known))
    if file.host_profile not in profiles():
        raise InputError(
            f"{where}: host_profile", f"unknown {file.host_profile!r}", nearest(file.host_profile, profiles())
        )
    code = {
        "name": file.framework or file.family, "host_profile": file.host_profile, **file.code,
        "gradients": file.training.get("gradients", "half"),
    }  # fmt: skip
    return Recipe(
        name, file.family, record(Framework, code, f"{where}: [code]"), file.version,
        file.date, file.source, file.training, file.parallel, file.attention_on, exceptions,
    )  # fmt: skip
