"""Which library builds a model of this name, and with what sizes. No torch: libraries are asked later.

A name is looked for among the cards (`cards.toml`), among the shipped language models, and then in the
library that its prefix names: ``timm_resnet50``, ``torchvision_vgg16``, ``hf_bert``. A configuration file
beside the measured table (``configs/NAME.json``, as Hugging Face writes config.json) comes before them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from stepsight.errors import InputError
from stepsight.inputs import read_json
from stepsight.records import read_toml
from stepsight.workload.llm.known import shipped

PREFIXES = {"timm_": "timm", "torchvision_": "torchvision", "tv_": "torchvision", "hf_": "transformers"}
"""What a model's name starts with, and the library it means."""

_FAMILIES = {"llama": "llama", "mistral": "mistral", "qwen": "qwen2", "gemma": "gemma", "opt": "opt"}
"""Families of the shipped language models that transformers builds under one model_type."""


@dataclass(frozen=True, slots=True)
class Card:
    """A model of a library; ``library`` is empty where the name does not tell: each is tried in turn."""

    name: str
    library: str
    model: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: tuple[str, ...] = ()


def card(name: str, configs: Path | None = None) -> Card:
    """The card of a model named in a measured table; ``configs`` is a folder of configuration files."""
    file = configs / f"{name}.json" if configs else None
    if file is not None and file.is_file():
        return _from_file(name, file)
    known = _cards()
    prefix = next((p for p in PREFIXES if name.lower().startswith(p)), "")
    bare = name[len(prefix) :]
    found = known.get(name) or _alike(name, known) or _alike(bare, known)
    if found is not None and (not prefix or found.library == PREFIXES[prefix]):
        return found
    if prefix in ("", "hf_"):
        language = _language_model(bare)
        if language is not None:
            return language
    return Card(name, PREFIXES.get(prefix, ""), bare)


@cache
def _cards() -> Mapping[str, Card]:
    with resources.as_file(resources.files("stepsight.run.library") / "cards.toml") as path:
        rows = read_toml(path)
    made: dict[str, Card] = {}
    for name, row in rows.items():
        same = rows.get(row.get("same_as", ""), {})
        sizes = {**same.get("sizes", {}), **row.get("sizes", {})}
        made[name] = Card(name, row["library"], row["model"], sizes, tuple(row.get("checkpoint", ())))
    return made


def plain(name: str) -> str:
    """A name without what people write differently: case, separators, "v3" for 3, 3.2 for 3."""
    name = re.sub(r"(?<=\d)\.\d+(?=[-_])", "", name.lower())
    name = re.sub(r"(?<=[-_])v(?=\d)", "", name)
    return re.sub(r"[^a-z0-9]", "", name)


def _alike(name: str, known: Mapping[str, Card]) -> Card | None:
    wanted = plain(name)
    return next((c for key, c in known.items() if plain(key) == wanted), None)


def _from_file(name: str, file: Path) -> Card:
    content = read_json(file, "give the config.json of a transformers model")
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise InputError(str(file), "holds no model_type", "give the config.json of a transformers model")
    sizes = {k: v for k, v in content.items() if k not in ("model_type", "architectures", "torch_dtype")}
    return Card(name, "transformers", content["model_type"], sizes)


def _language_model(name: str) -> Card | None:
    """A shipped language model as transformers configures it."""
    wanted = plain(name)
    row = next((r for key, r in shipped().items() if plain(key) == wanted), None)
    if row is None or row.get("family") not in _FAMILIES:
        return None
    fields = {
        "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads", "ffn": "intermediate_size", "vocab": "vocab_size",
        "head_dim": "head_dim", "tied": "tie_word_embeddings",
    }  # fmt: skip
    if row["family"] == "opt":
        fields = {**fields, "ffn": "ffn_dim"}
        fields.pop("kv_heads")
    sizes = {fields[k]: v for k, v in row.items() if k in fields}
    if row["family"] == "opt":
        sizes["word_embed_proj_dim"] = row["hidden"]
    return Card(name, "transformers", _FAMILIES[row["family"]], sizes)
