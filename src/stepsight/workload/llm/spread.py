"""The layout of a mixture of experts where nobody states one, as NVIDIA's guides recommend it.

Experts lie on GPUs that one link joins, a pipeline crosses nodes once they do not fit, and replicas share out
the optimizer state (Megatron-Core's guide to mixtures of experts; Megatron-Bridge's guide to parallelism:
experts are spread first, tensors hardly, stages across nodes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepsight.workload.llm.config import SPLITS, LanguageConfig, module_lists

MOST_STAGES, MOST_APART = 16, 64
"""Stages, and GPUs that share out the experts, at most: those of the guides' largest models."""
FIXED = {*SPLITS, "data", "zero", "shard_group"} - {"tensor"}
"""Fields of ``parallel`` that state a layout; a tensor group leaves experts and stages open."""


def leaves_layout_open(c: LanguageConfig, document: Mapping[str, Any]) -> bool:
    """Whether nobody states how a model with experts is spread, and its stack spreads experts."""
    parallel = document.get("parallel", {})
    return c.model.experts is not None and c.framework.name == "megatron" and not FIXED & set(parallel)


def layouts(
    c: LanguageConfig, document: Mapping[str, Any], gpus: int, per_node: int
) -> Iterator[Mapping[str, Any]]:
    """The document with a layout, in the order in which they are preferred: as little recomputation, experts
    as near to each other and as few stages as possible."""
    training, parallel = document.get("training", {}), document.get("parallel", {})
    again: list[Any] = ["none", list(module_lists(c.model)[-2]), "full"]
    if "recompute" in training:
        again = [training["recompute"]]
    gpus = parallel.get("ranks", gpus)
    for recompute in again:
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


def _expert_groups(c: LanguageConfig, gpus: int, per_node: int) -> list[int]:
    """The most GPUs of one node that experts can be shared out over, then more."""
    count = c.model.experts.count if c.model.experts else 1
    sizes = [n for n in range(1, min(gpus, count) + 1) if count % n == 0 and gpus % n == 0]
    near = max(n for n in sizes if per_node % n == 0)
    return [near, *(n for n in sizes if near < n <= MOST_APART and n % near == 0)]
