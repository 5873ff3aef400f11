"""Megatron's layout where nobody states one, as NVIDIA's guides recommend it.

Tensors are split inside a node and layers over nodes, as little as fits. Of a mixture of experts, experts
lie on GPUs that one link joins, a pipeline crosses nodes once they do not fit, and replicas share out the
optimizer state (Megatron-Core's guide to mixtures of experts; Megatron-Bridge's guide to parallelism: experts
are spread first, tensors hardly, stages across nodes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepsight.workload.llm.config import SPLITS, LanguageConfig, module_lists

MOST_STAGES, MOST_APART = 16, 64
"""Stages, and GPUs that share out the experts, at most: those of the guides' largest models."""
FIXED = {*SPLITS, "data", "zero", "shard_group"} - {"tensor"}
"""Fields of ``parallel`` that state a layout; a tensor group leaves experts and stages open."""


LEAST_BYTES = 4
"""Of a parameter: itself and its gradient in half precision."""
MOST_TOKENS = 64e6
"""Of a step, where nobody states a batch: DeepSeek-V3's 15,360 sequences of 4,096 are the most published."""


def leaves_layout_open(c: LanguageConfig, document: Mapping[str, Any]) -> bool:
    """Whether nobody states how a model is spread, and its stack spreads models."""
    stated = FIXED if c.model.experts else {*FIXED, "tensor"}
    return c.framework.name == "megatron" and not stated & set(document.get("parallel", {}))


def replicas_without_sequences(c: LanguageConfig, document: Mapping[str, Any], gpus: int) -> bool:
    """Whether a sequence on every GPU is more than the stated batch, or than any sensible one."""
    batch = document.get("global_batch")
    return gpus > batch if isinstance(batch, int) else gpus * c.sequence > MOST_TOKENS


def splits(
    c: LanguageConfig, document: Mapping[str, Any], gpus: int, per_node: int, usable_bytes: float
) -> Iterator[Mapping[str, Any]]:
    """The document of a model without experts with its tensors and layers split, as little recomputation and
    as few parts as possible first; tensors fill a node before a pipeline begins."""
    training, parallel = document.get("training", {}), document.get("parallel", {})
    gpus = parallel.get("ranks", gpus)
    parts = [(n, 1) for n in (2, 4, 8) if per_node % n == 0]
    widest = parts[-1][0] if parts else 1
    weights = 0.0 if c.training.frozen else LEAST_BYTES * c.model.parameters()
    parts += [(widest, n) for n in (2, 4, 8, MOST_STAGES)]
    for recompute in _recomputations(c, training):
        for tensor, pipeline in parts:
            inside = tensor * pipeline
            replicas = gpus // inside
            if gpus % inside or pipeline > c.model.layers or weights > inside * usable_bytes:
                continue
            if "global_batch" not in document and replicas_without_sequences(c, document, replicas):
                continue
            axes = {"ranks": gpus, "tensor": tensor, "pipeline": pipeline}
            yield {
                **document,
                "training": {**training, "recompute": recompute},
                "parallel": {**parallel, **axes},
            }


def layouts(
    c: LanguageConfig, document: Mapping[str, Any], gpus: int, per_node: int
) -> Iterator[Mapping[str, Any]]:
    """The document with a layout, in the order in which they are preferred: as little recomputation, experts
    as near to each other and as few stages as possible."""
    training, parallel = document.get("training", {}), document.get("parallel", {})
    gpus = parallel.get("ranks", gpus)
    for recompute in _recomputations(c, training):
        for expert in _expert_groups(c, gpus, per_node):
            for pipeline in (1, 2, 4, 8, MOST_STAGES):
                inside = c.layout.tensor * pipeline
                if gpus % inside or gpus // pipeline % expert or pipeline > c.model.layers:
                    continue
                axes = {"ranks": gpus, "expert": expert, "pipeline": pipeline}
                yield {
                    **document,
                    "training": {**training, "recompute": recompute},
                    "parallel": {**parallel, **axes},
                }


def _recomputations(c: LanguageConfig, training: Mapping[str, Any]) -> list[Any]:
    stated = training.get("recompute")
    return ["none", list(module_lists(c.model)[-2]), "full"] if stated is None else [stated]


def _expert_groups(c: LanguageConfig, gpus: int, per_node: int) -> list[int]:
    """The most GPUs of one node that experts can be shared out over, then more."""
    count = c.model.experts.count if c.model.experts else 1
    sizes = [n for n in range(1, min(gpus, count) + 1) if count % n == 0 and gpus % n == 0]
    near = max(n for n in sizes if per_node % n == 0)
    return [near, *(n for n in sizes if near < n <= MOST_APART and n % near == 0)]
