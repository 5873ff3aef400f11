"""Models by name: the shipped descriptions, and Hugging Face's ``config.json``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from stepsight.errors import InputError
from stepsight.inputs import read_json
from stepsight.records import Table, read_toml
from stepsight.workload.llm.hugging_face import from_hugging_face

CATALOGUE = Path(__file__).with_name("catalogue")


@cache
def shipped() -> Mapping[str, Table]:
    """The descriptions of well-known models; some have the sizes of another (``like``)."""
    found = read_toml(CATALOGUE / "models.toml")
    return {name: found[sizes["like"]] if "like" in sizes else sizes for name, sizes in found.items()}


def is_name(path: str | Path) -> bool:
    """Whether it can only be meant as a model's name: ``llama3-8b``, a hub's ``meta-llama/Llama-3.1-8B``."""
    text = str(path)
    plain = text.count("/") <= 1 and not text.startswith((".", "/")) and not text.endswith((".toml", ".json"))
    return plain and not Path(path).exists() and not Path(text.partition("/")[0]).is_dir()


@cache
def model_name(name: str) -> str:
    """The shipped model that a name means, with or without its owner, dashes and suffixes on a hub."""
    known: dict[str, str] = {
        **read_toml(CATALOGUE / "short_names.toml"),
        **{_letters(one): one for one in shipped()},
    }
    short = rest = name.lower().rpartition("/")[2].removeprefix("meta-")
    found = known.get(_letters(short))
    while found is None and _SUFFIX.search(rest):
        rest = _SUFFIX.sub("", rest)
        found = known.get(_letters(rest))
    if found is None:
        near = difflib.get_close_matches(short, shipped(), 3, 0.5)
        fix = f"did you mean {' or '.join(near)}?" if near else "give a config.json, or a workload file"
        raise InputError(name, "unknown model, and no such file", fix)
    return found


_SUFFIX = re.compile(r"-(?:hf|base|instruct|chat|it|pt|uncased|cased|1124|bf16|\d+k|v\d[\d.]*)$")
"""What hubs append to the names of the same sizes."""


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def shipped_sizes(name: str) -> Table:
    """The sizes of a well-known model."""
    return dict(shipped()[model_name(name)])


def named(name: str) -> Table:
    """A workload around a shipped description."""
    return _workload(shipped_sizes(name), model_name(name))


def read_config(path: str | Path) -> Table:
    """A workload around a Hugging Face ``config.json``."""
    path = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    where = str(path)
    config = read_json(path, "pass a model's config.json")
    if not isinstance(config, dict) or "model_type" not in config:
        raise InputError(where, "has no model_type", "pass a Hugging Face config.json, or a captured step")
    return _workload(from_hugging_face(config, where), str(config.get("_name_or_path") or Path(where).stem))


def is_config(path: str | Path) -> bool:
    """Whether this is read as a model's configuration: any JSON, so that its mistakes are named as such, or a
    folder with a config.json, as models are stored."""
    return Path(path).suffix == ".json" or (Path(path) / "config.json").is_file()


def _workload(sizes: Table, name: str) -> Table:
    return {
        "kind": "transformer",
        "name": Path(name).name,
        **sizes,
        "training": {},
        "parallel": {},
    }
