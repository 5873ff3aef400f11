"""Every setting of a workload with where it came from: the file, ``--set``, the recipe, or a default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stepsight.hardware.spec import GpuSpec
from stepsight.records import Assignments, assigned, read_toml
from stepsight.workload.fields import ALIASES, with_full_names
from stepsight.workload.files import load_workload, resolve
from stepsight.workload.llm.known import is_config, is_name, named, read_config
from stepsight.workload.llm.recipe import recipe_of
from stepsight.workload.llm.workload import LanguageWorkload

FILE, SET, DEFAULT = "file", "--set", "default"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: the path of its field, its value, and where the value came from."""

    name: str
    value: Any
    origin: str


def settings(
    workload: str | Path, overrides: Assignments = (), *, gpus: int = 1, gpu: GpuSpec | None = None
) -> list[Setting]:
    """The settings of a workload file, a config.json or a well-known model on ``gpus`` GPUs, by section."""
    document = _document(workload)
    changed = {ALIASES.get(key, key): value for key, value in assigned(overrides)}
    found = {name: Setting(name, value, FILE) for name, value in _flat(document)}
    found |= {name: Setting(name, value, SET) for name, value in changed.items()}
    loaded = resolve(load_workload(workload, overrides), gpus, gpu)
    if isinstance(loaded, LanguageWorkload):
        recipe = recipe_of(loaded.config.recipe)
        by_recipe = {f"training.{k}": v for k, v in recipe.training.items()}
        by_recipe |= {f"parallel.{k}": v for k, v in recipe.parallel.items()}
        c = loaded.config
        held = {f"training.{f.name}": getattr(c.training, f.name) for f in fields(c.training)}
        held |= {f"parallel.{f.name}": getattr(c.layout, f.name) for f in fields(c.layout)}
        for name, value in by_recipe.items():
            used = held.get(name, value)
            by_gpu = "" if used == value else ", for this GPU"
            found.setdefault(name, Setting(name, used, f"recipe {recipe.name}{by_gpu}"))
        for name, value in held.items():
            found.setdefault(name, Setting(name, value, DEFAULT))
    return sorted(found.values(), key=lambda s: ("." in s.name, s.name))


def _document(workload: str | Path) -> Mapping[str, Any]:
    document = (
        named(str(workload)) if is_name(workload)
        else read_config(workload) if is_config(workload)
        else read_toml(workload)
    )  # fmt: skip
    return document if document.get("kind") == "dlrm" else with_full_names(document, str(workload))


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
