"""A configuration as the flags of the frameworks that run it, ready to paste."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from stepsight.errors import StepsightError
from stepsight.platform.load import Platform
from stepsight.prediction.memory import fit_probability
from stepsight.tuning.answer import settings_text
from stepsight.tuning.evaluate import workload_of
from stepsight.tuning.search import SURE
from stepsight.tuning.trial import Row, frameworks_of
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.memory import language_memory
from stepsight.workload.llm.recipe import families
from stepsight.workload.llm.workload import LanguageWorkload

MOST_TRIED = 500
"""Configurations that are looked at for one that a framework can run, best first."""


@dataclass(frozen=True, slots=True)
class Flags:
    """One framework's way to say it; ``lacks`` says what it does not have, and what is written instead.
    ``note``: where it is another configuration, or none, because the best would not fit as this framework
    runs it."""

    framework: str
    text: str
    lacks: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Way:
    """How a framework is stated: its name in a workload file, what it writes, and what it then runs."""

    framework: str
    write: Callable[[LanguageConfig], Flags]
    runs: Callable[[LanguageConfig], LanguageConfig]


def flags(
    document: Mapping[str, Any], row: Row, platform: Platform, where: str = "workload",
    others: Sequence[Row] = (),
) -> list[Flags]:  # fmt: skip
    """Flags of torchtitan and Megatron-LM; none for a DLRM. What a framework lacks is written as what it has
    that comes next.

    Where that would not fit into memory, it is the first of ``others``, which come best first, that the
    framework can run as it stands and that fits. Where frameworks were compared, each has its own best.
    ``platform`` decides what the document leaves open, such as the micro-batch.
    """
    jobs = _Jobs(document, where, platform)
    if document.get("kind") == "dlrm" or (c := jobs.config(row)) is None:
        return []
    compared = len(frameworks_of([row, *others])) > 1
    found = []
    for way in _WAYS:
        own = [one for one in others if compared and one.framework == way.framework]
        first, config = (own[0], jobs.config(own[0])) if own else (row, c)
        if config is not None:
            written = _written(way, config, first, own or others, jobs)
            took = f"{first.step_time_us / 1e3:,.0f} ms"
            best = f"its best, {took}: {settings_text(first.settings)}" if own and not written.note else ""
            found.append(replace(written, note=written.note or best))
    return found


@dataclass(frozen=True, slots=True)
class _Jobs:
    """What rows of one search run."""

    document: Mapping[str, Any]
    where: str
    platform: Platform

    def config(self, row: Row) -> LanguageConfig | None:
        """What a row runs; None of a DLRM, or where the settings are refused."""
        try:
            workload = workload_of(self.document, row.settings, self.where, self.platform)
        except StepsightError:
            return None
        return workload.config if isinstance(workload, LanguageWorkload) else None

    def fits(self, way: _Way, c: LanguageConfig, row: Row) -> bool:
        """Whether what the framework runs is sure enough to fit; a row that knows no memory says nothing."""
        if row.usable_gb <= 0:
            return True
        return fit_probability(1e9 * self.peak_gb(way, c), 1e9 * row.usable_gb) >= SURE

    def need(self, way: _Way, c: LanguageConfig, row: Row) -> str:
        """How much memory a configuration takes as the framework runs it, and how likely that fits."""
        peak_gb = self.peak_gb(way, c)
        likely = fit_probability(1e9 * peak_gb, 1e9 * row.usable_gb)
        return f"{peak_gb:.0f} of {row.usable_gb:.0f} GB there, fits with {100 * likely:.0f} %"

    def peak_gb(self, way: _Way, c: LanguageConfig) -> float:
        return self.platform.learned.memory * language_memory(way.runs(c)).peak_bytes / 1e9


def _written(way: _Way, c: LanguageConfig, row: Row, others: Sequence[Row], jobs: _Jobs) -> Flags:
    first = way.write(c)
    if jobs.fits(way, c, row):
        return first
    for other in islice(others, MOST_TRIED):
        found = jobs.config(other)
        if found is None:
            continue
        written = way.write(found)
        if not written.lacks and jobs.fits(way, found, other):
            runs = f"the best that it can run: {settings_text(other.settings)}"
            return replace(written, note=f"the first would need {jobs.need(way, c, row)}; {runs}")
    return replace(first, text="", note=f"left out: {jobs.need(way, c, row)}")


def _as_run_by(name: str, c: LanguageConfig, zero: int) -> LanguageConfig:
    """The configuration with another framework's kernels and habits, and a ZeRO stage that it has."""
    layout = replace(c.layout, zero=zero)
    if c.framework.name == name:
        return replace(c, layout=layout)
    recipe = families()[name]
    compiled, fused_norm = bool(recipe.training.get("compile", False)), bool(recipe.training["fused_norm"])
    training = replace(c.training, compiled=compiled, fused_norm=fused_norm)
    return replace(c, framework=recipe.framework, training=training, layout=layout)


def _by_torchtitan(c: LanguageConfig) -> LanguageConfig:
    run = _as_run_by("torchtitan", c, 2 if _lacks_zero_1(c) else c.layout.zero)
    if c.training.recompute == "modules":
        run = replace(run, training=replace(run.training, recompute="selective", recompute_modules=()))
    return run


def _lacks_zero_1(c: LanguageConfig) -> bool:
    """FSDP reduces gradients after every micro-batch, in a pipeline after the last one."""
    return c.layout.zero == 1 and c.layout.pipeline == 1


def _by_megatron(c: LanguageConfig) -> LanguageConfig:
    return _as_run_by("megatron", c, 1 if c.layout.zero == 2 else c.layout.zero)


def _lacking(c: LanguageConfig, *known: tuple[str, bool]) -> str:
    """What a framework does not have, of what the configuration asks for."""
    unknown = c.layout.pipeline > 1 and c.layout.schedule == "zero_bubble"
    bubble = "no zero-bubble schedule of one stage per rank, written as 1F1B"
    return "; ".join(words for words, asked in (*known, (bubble, unknown)) if asked)


def _options(stated: Mapping[str, object]) -> str:
    """A command line: options with their values, those with an empty one by themselves."""
    return " ".join(f"--{name} {value}".rstrip() for name, value in stated.items())


def _torchtitan(c: LanguageConfig) -> Flags:
    """torchtitan's command line (``[parallelism]`` and ``[training]`` of its configuration)."""
    s, t = c.layout, c.training
    shard = s.data if s.zero else 1
    modules = t.recompute == "modules"
    stated: dict[str, object] = {
        "training.global_batch_size": c.batch_per_rank * s.data,
        "training.local_batch_size": c.micro_batch if s.pipeline == 1 else c.batch_per_rank,
        "training.seq_len": c.sequence,
        "parallelism.data_parallel_replicate_degree": s.data // shard,
        "parallelism.data_parallel_shard_degree": shard,
        "parallelism.tensor_parallel_degree": s.tensor,
        "parallelism.pipeline_parallel_degree": s.pipeline,
        "parallelism.context_parallel_degree": s.context,
    }
    if s.expert > 1:
        stated["parallelism.expert_parallel_degree"] = s.expert
    if s.pipeline > 1:
        schedule = {"interleaved": "Interleaved1F1B", "afab": "GPipe"}.get(s.schedule, "1F1B")
        stated["parallelism.pipeline_parallel_schedule"] = schedule
        stated["parallelism.pipeline_parallel_microbatch_size"] = c.micro_batch
    if s.zero in (1, 2):  # parameters stay gathered from the forward to the backward pass
        stated["parallelism.fsdp_reshard_after_forward"] = "never"
    stated["activation_checkpoint.mode"] = "selective" if modules else t.recompute
    lacks = _lacking(
        c,
        ("no ZeRO 1, written with gradients sharded, too", _lacks_zero_1(c)),
        ("no exchange of heads for parts of the sequence", s.context_kind == "all_to_all"),
        ("no recomputation of some layers, written with all", t.recompute_layers > 0),
        ("no recomputation by module, written as selective", modules),
    )
    return Flags("torchtitan", _options(stated), lacks)


def _megatron(c: LanguageConfig) -> Flags:
    s, t = c.layout, c.training
    stated: dict[str, object] = {
        "tensor-model-parallel-size": s.tensor,
        "pipeline-model-parallel-size": s.pipeline,
        "context-parallel-size": s.context,
        "micro-batch-size": c.micro_batch,
        "global-batch-size": c.batch_per_rank * s.data,
        "seq-length": c.sequence,
    }
    if s.context > 1 and s.context_kind != "ring":
        stated["cp-comm-type"] = "a2a" if s.context_kind == "all_to_all" else "all_gather"
    if s.expert > 1:
        stated["expert-model-parallel-size"] = s.expert
    if s.virtual_stages > 1:
        per_stage = c.model.layers // (s.pipeline * s.virtual_stages)
        stated["num-layers-per-virtual-pipeline-stage"] = per_stage
    if s.sequence_parallel:
        stated["sequence-parallel"] = ""
    if s.zero in (1, 2):
        stated["use-distributed-optimizer"] = ""
    if s.zero == 3:  # what --use-torch-fsdp2 insists on
        stated |= {"use-torch-fsdp2": "", "no-gradient-accumulation-fusion": "", "ckpt-format": "torch_dist"}
        stated |= {} if c.model.tied else {"untie-embeddings-and-output-weights": ""}
    elif s.overlap_gradients and s.data > 1:
        stated["overlap-grad-reduce"] = ""
    if t.recompute == "full":
        stated["recompute-granularity"] = "full"
        stated["recompute-method"] = "block" if t.recompute_layers else "uniform"
        stated["recompute-num-layers"] = t.recompute_layers or 1
    elif t.recompute in ("selective", "modules"):
        stated["recompute-granularity"] = "selective"
        if t.recompute_modules:
            stated["recompute-modules"] = " ".join(t.recompute_modules)
    if t.precision in ("bf16", "fp16"):
        stated[t.precision] = ""
    if t.precision == "fp8":
        stated |= {"bf16": "", "fp8-format": "hybrid"}
    lacks = _lacking(
        c,
        ("no ZeRO 2, written with ZeRO 1", s.zero == 2),
        ("no all-forward-all-backward, written as 1F1B", s.schedule == "afab"),
    )
    return Flags("Megatron-LM", _options(stated), lacks)


_WAYS = (
    _Way("torchtitan", _torchtitan, _by_torchtitan),
    _Way("megatron", _megatron, _by_megatron),
)
