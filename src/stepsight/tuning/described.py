"""The model that a search or a sweep is about, as a document whose fields can be set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepsight.capturing.step import is_step_file
from stepsight.errors import InputError
from stepsight.records import assigned, override, read_toml
from stepsight.tuning.evaluate import CAPTURED
from stepsight.workload.fields import ALIASES, with_full_names
from stepsight.workload.files import with_model
from stepsight.workload.llm.config import usual_framework
from stepsight.workload.llm.known import is_config, is_name, named, read_config

Model = str | Path | Mapping[str, Any]


FRAMEWORK, RECIPE = "training.framework", "training.recipe"


def of_one_framework(document: dict[str, Any], varied: Mapping[str, object]) -> dict[str, Any]:
    """The document with a framework named, so that candidates differ in what is varied and in nothing else.

    Without a name each would get what is usual for its ZeRO stage, and its gain would count as ZeRO's.
    """
    training = document.get("training") or {}
    if document.get("kind") != "transformer" or FRAMEWORK in varied or RECIPE in varied:
        return document
    if not isinstance(training, Mapping) or {"framework", "recipe"} & set(training):
        return document
    return {**document, "training": {**training, "framework": usual_framework(document)}}


def described(model: Model, assignments: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """A workload's document and its name: of a file, a config.json, a captured step, or a known model."""
    where = "workload" if isinstance(model, Mapping) else str(model)
    if isinstance(model, Mapping):
        document = dict(model)
    elif is_step_file(Path(model)):
        if assignments:
            raise InputError(f"--set {assignments[0]}", "a captured step has no fields", "capture it again")
        file = Path(model).absolute() if Path(model).exists() else model  # or a shipped step by its name
        return {"kind": CAPTURED, "file": str(file)}, where
    elif is_name(model):
        document = named(str(model))
    else:
        document = read_config(model) if is_config(model) else read_toml(model)
    changes = {ALIASES.get(key, key): value for key, value in assigned(assignments)}
    document = dict(with_model(document))
    if document.get("kind") == "transformer":
        document = with_full_names(document, where)
    if "global_batch" in changes and "batch_per_rank" not in changes:
        document.pop("batch_per_rank", None)
    return override(document, changes, where), where
