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
from stepsight.tuning.evaluate import with_settings
from stepsight.tuning.search import SURE
from stepsight.tuning.trial import Row, frameworks_of
from stepsight.workload.files import parse_workload, resolve
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
    splits_sequences: bool


def flags(
    document: Mapping[str, Any], row: Row, where: str = "workload", others: Sequence[Row] = (),
    platform: Platform | None = None,
) -> list[Flags]:  # fmt: skip
    """Flags of torchtitan, Megatron-LM, and where sequences stay whole of nanotron and DeepSpeed; none for a
    DLRM. What a framework lacks is written as what it has that comes next.

    Where that would not fit into memory, it is the first of ``others``, which come best first, that the
    framework can run as it stands and that fits. Where frameworks were compared, each has its own best.
    ``platform`` decides what the document leaves open, such as the micro-batch.
    """
    jobs = _Jobs(document, where, platform)
    c = jobs.config(row)
    if c is None:
        return []
    compared = len(frameworks_of([row, *others])) > 1
    found = []
    for way in _WAYS:
        own = [one for one in others if compared and one.framework == way.framework]
        first, config = (own[0], jobs.config(own[0])) if own else (row, c)
        if config is not None and (way.splits_sequences or config.layout.context == 1):
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
    platform: Platform | None

    def config(self, row: Row) -> LanguageConfig | None:
        try:
            workload = parse_workload(with_settings(self.document, row.settings, self.where), self.where)
            if self.platform is not None:
                workload = resolve(workload, self.platform.spec.ranks, self.platform.spec.gpu)
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
        return f"{peak_gb:.0f} of {row.usable_gb:.0f} GB there, {100 * likely:.0f} % likely to fit"

    def peak_gb(self, way: _Way, c: LanguageConfig) -> float:
        learned = self.platform.learned.memory if self.platform else 1.0
        return learned * language_memory(way.runs(c)).peak_bytes / 1e9


def _written(way: _Way, c: LanguageConfig, row: Row, others: Sequence[Row], jobs: _Jobs) -> Flags:
    first = way.write(c)
    if first.text and jobs.fits(way, c, row):
        return first
    why = (
        f"the first would need {jobs.need(way, c, row)}"
        if first.text
        else f"it cannot run the first: {first.lacks}"
    )
    for other in islice(others, MOST_TRIED):
        found = jobs.config(other)
        if found is None or not (way.splits_sequences or found.layout.context == 1):
            continue
        written = way.write(found)
        if not written.lacks and jobs.fits(way, found, other):
            return replace(written, note=f"{why}; the best that it can run: {settings_text(other.settings)}")
    if not first.text:
        return replace(first, lacks="", note=why)
    return replace(first, text="", note=f"would not fit: {jobs.need(way, c, row)}")


def _as_run_by(name: str, c: LanguageConfig, *, most_zero: int = 3) -> LanguageConfig:
    """The configuration with another framework's kernels and habits, and no more ZeRO than it has."""
    if c.framework.name == name:
        framework, training = c.framework, c.training
    else:
        recipe = families()[name]
        framework, stated = recipe.framework, recipe.training
        training = replace(
            c.training, compiled=bool(stated.get("compile", False)), fused_norm=bool(stated["fused_norm"])
        )
    layout = replace(c.layout, zero=min(c.layout.zero, most_zero))
    return replace(c, framework=framework, training=training, layout=layout)


def _by_torchtitan(c: LanguageConfig) -> LanguageConfig:
    run = _as_run_by("torchtitan", c)
    if c.training.recompute == "modules":
        selective = replace(run.training, recompute="selective", recompute_modules=())
        run = replace(run, training=selective)
    return replace(run, layout=replace(run.layout, zero=2)) if c.layout.zero == 1 else run


def _by_megatron(c: LanguageConfig) -> LanguageConfig:
    return _as_run_by("megatron", c, most_zero=1 if c.layout.zero < 3 else 3)


def _by_nanotron(c: LanguageConfig) -> LanguageConfig:
    """1F1B without interleaving, and layers run again as a whole or not at all."""
    run = _as_run_by("nanotron", c, most_zero=1)
    once = replace(run.layout, virtual_stages=1, schedule="1f1b")
    full = run.training.recompute == "full"
    training = run.training if full else replace(run.training, recompute="none", recompute_layers=0)
    return replace(run, layout=once, training=training)


def _by_deepspeed(c: LanguageConfig) -> LanguageConfig:
    return _as_run_by("deepspeed", c)


def _torchtitan(c: LanguageConfig) -> Flags:
    """torchtitan's command line (``[parallelism]`` and ``[training]`` of its configuration)."""
    s = c.layout
    shard = s.data if s.zero else 1
    replicate = s.data // shard
    parts = [
        f"--training.global_batch_size {c.batch_per_rank * s.data}",
        f"--training.local_batch_size {c.micro_batch if s.pipeline == 1 else c.batch_per_rank}",
        f"--training.seq_len {c.sequence}",
        f"--parallelism.data_parallel_replicate_degree {replicate}",
        f"--parallelism.data_parallel_shard_degree {shard}",
        f"--parallelism.tensor_parallel_degree {s.tensor}",
        f"--parallelism.pipeline_parallel_degree {s.pipeline}",
        f"--parallelism.context_parallel_degree {s.context}",
    ]
    if s.expert > 1:
        parts.append(f"--parallelism.expert_parallel_degree {s.expert}")
    if s.pipeline > 1:
        name = {"interleaved": "Interleaved1F1B", "afab": "GPipe"}.get(s.schedule, "1F1B")
        parts += [
            f"--parallelism.pipeline_parallel_schedule {name}",
            f"--parallelism.pipeline_parallel_microbatch_size {c.micro_batch}",
        ]
    if s.zero in (1, 2):  # parameters stay gathered from the forward to the backward pass
        parts.append("--parallelism.fsdp_reshard_after_forward never")
    modules = c.training.recompute == "modules"
    parts.append(f"--activation_checkpoint.mode {'selective' if modules else c.training.recompute}")
    lacking = ["no ZeRO 1, written with gradients sharded, too"] if s.zero == 1 else []
    lacking += ["no exchange of heads for parts of the sequence"] if s.context_kind == "all_to_all" else []
    lacking += _without_zero_bubble(c)
    lacking += ["no recomputation of some layers, written with all"] if c.training.recompute_layers else []
    lacking += ["no recomputation by module, written as selective"] if modules else []
    return Flags("torchtitan", " ".join(parts), "; ".join(lacking))


def _without_zero_bubble(c: LanguageConfig) -> list[str]:
    zero_bubble = c.layout.pipeline > 1 and c.layout.schedule == "zero_bubble"
    return ["no zero-bubble schedule of one stage per rank, written as 1F1B"] if zero_bubble else []


def _megatron(c: LanguageConfig) -> Flags:
    s, t = c.layout, c.training
    parts = [
        f"--tensor-model-parallel-size {s.tensor}",
        f"--pipeline-model-parallel-size {s.pipeline}",
        f"--context-parallel-size {s.context}",
        f"--micro-batch-size {c.micro_batch}",
        f"--global-batch-size {c.batch_per_rank * s.data}",
        f"--seq-length {c.sequence}",
    ]
    if s.context > 1 and s.context_kind != "ring":
        parts.append(f"--cp-comm-type {'a2a' if s.context_kind == 'all_to_all' else 'all_gather'}")
    if s.expert > 1:
        parts.append(f"--expert-model-parallel-size {s.expert}")
    if s.virtual_stages > 1:
        per_stage = c.model.layers // (s.pipeline * s.virtual_stages)
        parts.append(f"--num-layers-per-virtual-pipeline-stage {per_stage}")
    if s.sequence_parallel:
        parts.append("--sequence-parallel")
    if s.zero in (1, 2):
        parts.append("--use-distributed-optimizer")
    if s.zero == 3:  # what --use-torch-fsdp2 insists on
        parts.append("--use-torch-fsdp2 --no-gradient-accumulation-fusion --ckpt-format torch_dist")
        parts += [] if c.model.tied else ["--untie-embeddings-and-output-weights"]
    elif s.overlap_gradients and s.data > 1:
        parts.append("--overlap-grad-reduce")
    if t.recompute == "full":
        some = t.recompute_layers
        how = f"block --recompute-num-layers {some}" if some else "uniform --recompute-num-layers 1"
        parts.append(f"--recompute-granularity full --recompute-method {how}")
    elif t.recompute in ("selective", "modules"):
        parts.append("--recompute-granularity selective")
        parts += ["--recompute-modules", *t.recompute_modules] if t.recompute_modules else []
    parts += [f"--{t.precision}"] if t.precision in ("bf16", "fp16") else []
    parts += ["--bf16 --fp8-format hybrid"] if t.precision == "fp8" else []
    lacking = ["no ZeRO 2, written with ZeRO 1"] if s.zero == 2 else []
    lacking += _without_zero_bubble(c)
    lacking += ["no all-forward-all-backward, written as 1F1B"] if s.schedule == "afab" else []
    return Flags("Megatron-LM", " ".join(parts), "; ".join(lacking))


def _nanotron(c: LanguageConfig) -> Flags:
    """nanotron's YAML, in one line each."""
    s = c.layout
    mode = "REDUCE_SCATTER" if s.sequence_parallel else "ALL_REDUCE"
    lines = [
        "parallelism:",
        f"  dp: {s.data}",
        f"  tp: {s.tensor}",
        f"  pp: {s.pipeline}",
        f"  pp_engine: {'afab' if s.schedule == 'afab' else '1f1b'}",
        f"  tp_mode: {mode}",
        f"  tp_linear_async_communication: {str(s.sequence_parallel).lower()}",
        f"  recompute_layer: {str(c.training.recompute == 'full').lower()}",
        "tokens:",
        f"  micro_batch_size: {c.micro_batch}",
        f"  batch_accumulation_per_replica: {s.micro_batches}",
        f"  sequence_length: {c.sequence}",
        "optimizer:",
        f"  zero_stage: {min(s.zero, 1)}",
    ]
    lacking = [
        name
        for name, on in (
            ("no ZeRO 2 and 3, written with ZeRO 1", s.zero > 1),
            ("no interleaved stages", s.virtual_stages > 1),
            ("no context parallelism", s.context > 1),
            ("no selective recomputation", c.training.recompute in ("selective", "modules")),
            ("no recomputation of some layers, written with all", c.training.recompute_layers > 0),
            ("no expert parallelism", s.expert > 1),
        )
        if on
    ]  # fmt: skip
    return Flags("nanotron", "\n".join(lines), "; ".join([*lacking, *_without_zero_bubble(c)]))


def _deepspeed(c: LanguageConfig) -> Flags:
    """DeepSpeed's JSON; tensor and pipeline parallelism are the model's own business there."""
    s = c.layout
    half = c.training.dtype if c.training.half else ""
    precision = f', "{half}": {{"enabled": true}}' if half else ""
    content = (
        f'{{"train_batch_size": {c.batch_per_rank * s.data}, '
        f'"train_micro_batch_size_per_gpu": {c.micro_batch}, '
        f'"gradient_accumulation_steps": {s.micro_batches}, '
        f'"zero_optimization": {{"stage": {s.zero}, "overlap_comm": {str(s.overlap_gradients).lower()}}}'
        f"{precision}}}"
    )
    if s.tensor * s.pipeline > 1:
        return Flags("DeepSpeed", "", "no tensor and pipeline parallelism (use Megatron-DeepSpeed)")
    lacking = ["expert parallelism is set in the model's code"] if s.expert > 1 else []
    lacking += ["recomputation is set in the model's code"] if c.training.recompute != "none" else []
    return Flags("DeepSpeed", content, "; ".join(lacking))


_WAYS = (
    _Way("torchtitan", _torchtitan, _by_torchtitan, True),
    _Way("megatron", _megatron, _by_megatron, True),
    _Way("nanotron", _nanotron, _by_nanotron, False),
    _Way("deepspeed", _deepspeed, _by_deepspeed, False),
)
