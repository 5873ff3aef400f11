"""A transformer as its TOML file describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepsight.workload.fields import Fields
from stepsight.workload.parallel.axes import data_ranks
from stepsight.workload.training import Training

FAMILIES = ("bert", "gpt2", "xlnet", "gpt", "opt", "llama")
SPLITTABLE = ("gpt2", "gpt", "opt")
"""Families that can be spread by tensor and pipeline parallelism."""
LOSSES = ("cross_entropy", "none")
_DROPOUT = {"llama": 0.0}
"""Dropout of the published models: 0.1 everywhere, none in Llama."""

_WITHOUT_EFFECT = {
    "xlnet": {
        "recompute": "XLNet is not run again layer by layer",
        "attention": "XLNet's two-stream attention has no fused kernel",
    },
}


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Model, batch and layout of one transformer.

    ``kv_heads`` below ``heads`` is grouped-query attention (Llama). ``head``: lm ends in the
    vocabulary, none stops at the last hidden state. ``data``, ``tensor`` and ``pipeline`` are
    the sizes of the parallel groups; ``micro_batches`` the pieces a rank's batch is cut into.
    """

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    sequence: int
    batch_per_rank: int
    training: Training
    kv_heads: int
    head: str = "lm"
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    micro_batches: int = 1
    bucket_mb: float = 25.0
    source: str = field(default="", compare=False)

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def whole(self) -> StagePart:
        return StagePart(self.layers)

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class StagePart:
    """The part of a model that one pipeline stage holds."""

    layers: int
    first: bool = True
    last: bool = True


def read_transformer(document: Mapping[str, Any], source: str) -> TransformerConfig:
    """The file's fields, checked."""
    fields = Fields(document, source)
    fields.choice("kind", ("transformer",))
    family = fields.choice("family", FAMILIES)
    training_fields, parallel = fields.section("training"), fields.section("parallel")
    for key in ("framework", "recipe"):
        training_fields.anything(key, "")
    training = Training.read(
        training_fields, LOSSES, "adamw", _DROPOUT.get(family, 0.1), _WITHOUT_EFFECT.get(family)
    )
    heads = fields.integer("heads")
    tensor, pipeline = parallel.integer("tensor", 1), parallel.integer("pipeline", 1)
    batch = fields.integer("batch_per_rank")
    micro = parallel.integer("micro_batch", batch)
    config = TransformerConfig(
        name=fields.text("name", Path(source).stem),
        family=family,
        layers=fields.integer("layers"),
        hidden=fields.integer("hidden"),
        heads=heads,
        ffn=fields.integer("ffn", 4 * fields.integer("hidden")),
        vocab=fields.integer("vocab"),
        sequence=fields.integer("sequence"),
        batch_per_rank=batch,
        training=training,
        kv_heads=fields.integer("kv_heads", heads),
        head=fields.choice("head", ("lm", "none"), "lm"),
        data=data_ranks(parallel, tensor * pipeline, "tensor × pipeline"),
        tensor=tensor,
        pipeline=pipeline,
        micro_batches=max(batch // micro, 1),
        bucket_mb=parallel.number("bucket_mb", 25.0, least=0.001),
        source=source,
    )
    for section in (parallel, fields):
        section.finish()
    _check(config, fields, parallel, micro)
    return config


def _check(config: TransformerConfig, fields: Fields, parallel: Fields, micro: int) -> None:
    if config.hidden % config.heads:
        raise fields.fail(
            "heads", f"{config.heads} heads do not divide hidden = {config.hidden}", "use a divisor"
        )
    if config.heads % config.kv_heads:
        raise fields.fail(
            "kv_heads", f"{config.kv_heads} do not divide heads = {config.heads}", "use a divisor"
        )
    if config.kv_heads != config.heads and config.family != "llama":
        raise fields.fail(
            "kv_heads", f"has no effect: {config.family} has as many key heads as heads", "leave it out"
        )
    if config.batch_per_rank % micro:
        raise parallel.fail(
            "micro_batch",
            f"{micro} does not divide batch_per_rank = {config.batch_per_rank}",
            "use a divisor",
        )
    if config.heads % config.tensor or config.ffn % config.tensor:
        raise parallel.fail(
            "tensor",
            f"{config.tensor} does not divide heads = {config.heads} and ffn = {config.ffn}",
            "use a divisor",
        )
    if config.tensor * config.pipeline * config.micro_batches > 1 and config.family not in SPLITTABLE:
        raise parallel.fail(
            "tensor, pipeline, micro_batch", f"{config.family} runs data-parallel only",
            f"families that can be split: {', '.join(SPLITTABLE)}",
        )  # fmt: skip
    if config.layers % config.pipeline:
        raise parallel.fail(
            "pipeline", f"{config.pipeline} stages do not divide layers = {config.layers}", "use a divisor"
        )
    if parallel.has("bucket_mb") and config.data == 1:
        raise parallel.fail(
            "bucket_mb",
            "has no effect: one replica reduces no gradients",
            "leave it out, or set data above 1",
        )
    if config.training.loss != "none" and config.head == "none":
        raise fields.fail("head", "a model without head has no loss", 'set [training] loss = "none"')
