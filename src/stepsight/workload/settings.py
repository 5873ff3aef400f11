"""Every setting of a job and of its platform, with where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stepsight.hardware.spec import PlatformSpec
from stepsight.records import Assignments, assigned, read_toml
from stepsight.workload.dlrm.config import WITHOUT_EFFECT, DlrmConfig
from stepsight.workload.fields import ALIASES, with_full_names
from stepsight.workload.files import (
    is_config,
    is_name,
    load_workload,
    model_name,
    named,
    read_config,
    resolve,
)
from stepsight.workload.llm.config import PLAIN_FIELDS, LanguageConfig, case_of
from stepsight.workload.llm.recipe import Recipe, recipe_of
from stepsight.workload.llm.workload import LanguageWorkload

FILE, SET, DEFAULT = "file", "--set", "default"
ALL_GPUS = "all GPUs of the platform"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: the path of its field, its value, and where the value came from."""

    name: str
    value: Any
    origin: str


def settings(
    workload: str | Path, spec: PlatformSpec, overrides: Assignments = (), on_platform: Assignments = ()
) -> list[Setting]:
    """The settings of a workload file, a config.json or a well-known model, and of the platform, by section.

    ``overrides`` are assignments to the workload, ``on_platform`` those that made the platform.
    """
    document = _document(workload)
    changed = {ALIASES.get(key, key): value for key, value in assigned(overrides)}
    given = f"model {model_name(str(workload))}" if is_name(workload) else FILE
    stated = {name: Setting(name, value, given) for name, value in _flat(document)}
    stated |= {name: Setting(name, value, SET) for name, value in changed.items()}
    read = load_workload(workload, overrides)
    loaded = resolve(read, spec.ranks, spec.gpu, spec.gpus_per_node)
    if isinstance(loaded, LanguageWorkload):
        made = _of_language(loaded.config, stated, spec.gpu.name)
    else:
        made = {name: (value, DEFAULT) for name, value in _of_dlrm(loaded.config).items()}
    if read.open_ranks is not None:
        ranks = "parallel.data" if isinstance(loaded, LanguageWorkload) else "parallel.ranks"
        made[ranks] = (made[ranks][0], ALL_GPUS)
    made |= _of_platform(spec, [key for key, _ in assigned(on_platform)])
    found = {name: Setting(name, *one) for name, one in made.items()} | stated
    return sorted(found.values(), key=lambda s: ("." in s.name, s.name))


Made = dict[str, tuple[Any, str]]
"""Values by field, with where they came from."""
_DERIVED = (
    "training.compiled", "training.clipping", "training.recompute_layers", "training.recompute_modules",
    "parallel.micro_batches", "parallel.states_buckets",
)  # fmt: skip
"""What follows from the fields that a description has."""


def _of_language(c: LanguageConfig, stated: Mapping[str, Setting], gpu: str) -> Made:
    """What the recipe gives and what is left by default."""
    recipe = recipe_of(c.recipe)
    by_recipe = recipe.settings(case_of(c, gpu))
    held = {f"training.{f.name}": getattr(c.training, f.name) for f in fields(c.training)}
    held |= {f"parallel.{f.name}": getattr(c.layout, f.name) for f in fields(c.layout)}
    held |= {"training.compile": c.training.compiled, "training.clip_gradients": c.training.clipping}
    held |= {"parallel.micro_batch": c.micro_batch}
    again = c.training.recompute_modules
    held |= {"training.recompute": list(again)} if again else {}
    held |= {} if "global_batch" in stated else {"batch_per_rank": c.batch_per_rank}
    skipped = [*_DERIVED, *(() if c.framework.plain else (f"training.{name}" for name in PLAIN_FIELDS))]
    found: Made = {name: (value, DEFAULT) for name, value in held.items() if name not in skipped}
    for name, value in by_recipe.items():
        used = held.get(name, value)
        origin = f"recipe {recipe.name}" if used == value else _instead(name, c, recipe)
        found[name] = (used, origin)
    if "micro_batch" in c.left_open:
        found["parallel.micro_batch"] = (c.micro_batch, "the largest that fits")
    named = "training.recipe" in stated or "training.framework" in stated
    usual = "follows from the other" if named else "usual for such a model and layout"
    return found | {"training.recipe": (recipe.name, usual), "training.framework": (recipe.family, usual)}


def _instead(name: str, c: LanguageConfig, recipe: Recipe) -> str:
    """Why a field is not as the recipe has it."""
    s, field = c.layout, name.partition(".")[2]
    if field in ("sequence_parallel", "async_tensor") and s.tensor == 1:
        return "tensor is 1"
    if field in ("zero", "overlap_gradients", "prefetch") and s.data * s.context == 1:
        return "one replica"
    if field == "recompute" and "recompute" in c.left_open:
        return "to fit"
    return f"recipe {recipe.name}, {'for this GPU' if field == 'attention' else 'with these settings'}"


_OF_MODEL = ("batch", "features", "bottom", "top", "interaction", "cross_layers", "cross_rank")
_OF_EXCHANGE = ("bucket_mb", "input_dist", "exchange_dtype")
_OF_STACK = ("sparse_optimizer", "sparse_update", "stack", "loader")


def _of_dlrm(c: DlrmConfig) -> dict[str, Any]:
    """The fields of a DLRM; cross layers only where it has some, exchanges only between ranks."""
    skipped = [] if c.interaction == "dcnv2" else ["cross_layers", "cross_rank"]
    skipped += [] if c.ranks > 1 else _OF_EXCHANGE
    skipped += [] if c.stack == "torchrec" else ["loader"]
    sections = {
        "dense": _OF_MODEL[1:], "training": _OF_STACK,
        "parallel": ("ranks", "fused_lookup", *_OF_EXCHANGE),
    }  # fmt: skip
    held = {f"{name}.{key}": getattr(c, key) for name, keys in sections.items() for key in keys
            if key not in skipped}  # fmt: skip
    names = [f.name for f in fields(c.training) if f.name not in ("half_state", *WITHOUT_EFFECT)]
    trained = {f"training.{name}": getattr(c.training, name) for name in names}
    return {"batch": c.batch, **trained, **held, "parallel.sharding": c.plan.sharder}


def _of_platform(spec: PlatformSpec, changed: list[str]) -> Made:
    """Board, link and NIC, and what was set."""
    found: Made = {
        "platform.gpu": (spec.gpu.name, f"platform {spec.name}"),
        "platform.gpus_per_node": (spec.gpus_per_node, f"platform {spec.name}"),
        "platform.nodes": (spec.nodes, f"platform {spec.name}"),
    }
    for part, link in (("link", spec.link), ("nic", spec.nic)):
        if link is not None:
            origin = link.source.partition(";")[0] or f"platform {spec.name}"
            found[f"platform.{part}.kind"] = (link.kind, origin)
            found[f"platform.{part}.gbps"] = (link.gbps, origin)
    for key in changed:
        value: Any = spec
        for step in key.split("."):
            value = value.get(step) if isinstance(value, Mapping) else getattr(value, step, None)
        found[f"platform.{key}"] = (getattr(value, "name", value), SET)
    return found


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
