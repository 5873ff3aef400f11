"""One measured run of a language model, with what its source states. No predictions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stepsight.collectives.site import SiteBandwidth
from stepsight.errors import InputError
from stepsight.hardware.gpus import find_gpu
from stepsight.workload.files import model_name

Row = Mapping[str, str]
T = TypeVar("T")
NO_MODEL = "a model that is not in the catalogue"
NO_GPU = "a GPU that is not in the catalogue"


@dataclass(frozen=True, slots=True)
class Case:
    """A measured run: its description, its platform, and what was measured. Readers leave out name and group.

    ``stated`` is what the row itself says: model, batch, sequence, layout, precision. None: the tool cannot
    express it, for the reason in ``lacks``. ``recipe`` names the training stack; ``settings`` are what the
    publication says beyond the row. ``measured_ms`` None: no time is given; ``crashed``: it did not run
    because it did not fit, as far as the file says. ``layouts``: where the row states no layout, those that
    its publication leaves, the least first. ``slow``: left out by the rule of its file. ``group`` is
    the part of the file that is scored by itself; ``site`` what the cluster's own network test measured.
    ``allocated``: ``measured_gb`` is the peak of live bytes, not all that the caching allocator holds.
    """

    stated: Mapping[str, Any] | None
    recipe: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    platform: str = ""
    overrides: tuple[str, ...] = ()
    measured_ms: float | None = None
    measured_gb: float | None = None
    allocated: bool = False
    crashed: bool = False
    slow: bool = False
    lacks: str = ""
    layouts: tuple[Mapping[str, Any], ...] = ()
    site: SiteBandwidth | None = None
    name: str = ""
    group: str = ""
    file: str = ""

    @property
    def document(self) -> dict[str, Any] | None:
        """The workload as published in full."""
        asked = self.asked
        return None if asked is None else merged(asked, self.settings)

    @property
    def asked(self) -> dict[str, Any] | None:
        """The workload as a user asks: what the row states, and the recipe's name."""
        if self.stated is None:
            return None
        named = {"training": {"recipe": self.recipe}} if self.recipe else {}
        return merged({"kind": "transformer", **self.stated}, named)

    @property
    def source(self) -> str:
        """Who measured it: the file, or its part where a file collects several publications."""
        return self.group if self.file == "other_training" else self.file


class LacksError(Exception):
    """A row of which no workload can be made, and why."""


def required(found: T | None, lacks: str) -> T:
    """What was found; without it the row is not expressed."""
    if found is None:
        raise LacksError(lacks)
    return found


def as_stated(
    row: Row, model: str, training: Mapping[str, Any], parallel: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """What the rows of most tables state."""
    return {
        "model": model, "sequence": whole(row, "seq"), "global_batch": whole(row, "global_batch"),
        "training": training, "parallel": parallel, **more,
    }  # fmt: skip


def merged(document: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A document with further fields; sections are joined."""
    found = dict(document)
    for key, value in more.items():
        section = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = {**found[key], **value} if section else value
    return found


def whole(row: Row, column: str, default: int | None = None) -> int:
    """A whole number; the default where the column is empty."""
    if default is not None and not row.get(column):
        return default
    return int(float(row[column]))


def number(row: Row, column: str) -> float | None:
    """A figure; None where the column is empty."""
    return float(row[column]) if row.get(column) else None


_SPELLINGS = {
    "nemotron4 340b": "nemotron-340b", "nemotron 15b": "nemotron4-15b", "tiny-llama": "tinyllama-1.1b",
    "nemo megatron": "gpt3-175b", "gpt 175b": "gpt3-175b", "llama2_70b_lora": "llama2-70b",
    "grok1 314b": "grok-1", "grok1": "grok-1", "llama4 e128": "llama4-maverick", "llama4 e16": "llama4-scout",
}  # fmt: skip
"""Names of models in published tables that the product's own list of names does not cover."""


def catalogue_model(text: str) -> str | None:
    """The shipped model that a table's name means: ``Llama 3.1 405b``, ``qwen3_30b_a3b (BF16)``."""
    plain = re.sub(r"\s*\(.*\)", "", text).strip().lower()
    try:
        return model_name(_SPELLINGS.get(plain, plain.replace(" ", "-").replace("_", "-")))
    except InputError:
        return None


_CHIP = r"(?:\b|(?<=\dx))(?:GB|GH|MI|RTX|[ABHLVTP])-?\d+\w*"
_FORM = r"(?:[ -](?:NVL|PCIe|SXM\d?)\b)?"
_MEMORY = r"(?:[ -]\d+ ?GB?\b)?"


def catalogue_gpu(text: str) -> str | None:
    """The catalogue's board that a table's name means: ``DGX-H100``, ``8x A100 80GB``, ``Blackwell GPU
    (B200-SXM-180GB)``; the fullest name that the catalogue knows."""
    parts = (_CHIP + _FORM + _MEMORY, _CHIP + _FORM, _CHIP)
    found = [name for part in parts for name in re.findall(part, text, flags=re.IGNORECASE)]
    found.sort(key=len, reverse=True)
    for name in (text, *found, *(re.split("[ -]", chip)[0] for chip in found)):
        entry = find_gpu(name)
        if entry is not None:
            return entry.gpu.name
    return None


def joined_gpus(gpu: str, gpus: int) -> int:
    """GPUs that one NVLink or Infinity Fabric joins: eight, or of a rack of 72 as many as divide the job."""
    if not gpu.startswith("GB"):
        return 8
    return gpus if gpus <= 72 else max((n for n in range(4, 73, 4) if gpus % n == 0), default=64)


def platform_name(gpus: int, per_node: int, gpu: str, nic: str) -> str:
    """``gpus`` GPUs in nodes of ``per_node``."""
    nodes = -(-gpus // per_node)
    return f"{min(gpus, per_node)}x{gpu}" if nodes == 1 else f"{nodes}x{per_node}x{gpu}-{nic}"
