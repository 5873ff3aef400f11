"""A language model that can be turned into a job, with what its users count in: tokens, FLOPs, stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepsight.program.job import Job
from stepsight.workload.llm.build import build
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.families import FAMILIES
from stepsight.workload.llm.memory import language_memory
from stepsight.workload.memory import MemoryReport

TAPED = ("bert", "gpt2", "gpt", "opt", "llama")
"""Families that plain data-parallel PyTorch runs operator by operator (`stepsight.workload.transformers`)."""
TAPED_PARALLEL = frozenset({"data", "ranks", "bucket_mb"})
SPLIT_PARALLEL = frozenset({*TAPED_PARALLEL, "tensor", "pipeline", "micro_batch"})
BEYOND_TAPES = ("model", "global_batch", "moe", "mla", "head_dim", "window")


def is_language_model(document: Mapping[str, Any]) -> bool:
    """Whether a transformer's description asks for what only language-model training has.

    Plain eager data parallelism (and gpt2, gpt, opt split by tensor and pipeline) goes operator by operator.
    """
    family = document.get("family")
    training, parallel = document.get("training") or {}, document.get("parallel") or {}
    if not isinstance(training, Mapping) or not isinstance(parallel, Mapping):
        return False
    if family in FAMILIES and family not in (*TAPED, "megatron"):
        return True
    if (
        training.get("framework")
        or training.get("precision") == "fp8"
        or any(k in document for k in BEYOND_TAPES)
    ):
        return True
    taped = SPLIT_PARALLEL if family in ("gpt2", "gpt", "opt", "megatron") else TAPED_PARALLEL
    return family in FAMILIES and not set(parallel) <= taped


@dataclass(frozen=True)
class LanguageWorkload:
    """A language model and how it is trained."""

    config: LanguageConfig

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def ranks(self) -> int:
        return self.config.ranks

    def job(self, device: str = "cuda") -> Job:
        """One program for each stage of the pipeline."""
        return build(self.config)

    def memory(self) -> MemoryReport:
        """What each rank's device must hold at the peak."""
        return language_memory(self.config)
