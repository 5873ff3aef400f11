"""Reading a workload file's fields strictly: every mistake named by file, field and fix."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_type_hints

from stepsight.errors import InputError
from stepsight.inputs import check_limit, limit, number
from stepsight.records import closest, nearest

Record = TypeVar("Record")
LIMIT_OF = {
    "layers": "LAYERS", "mtp_layers": "LAYERS", "count": "TABLES",
    **dict.fromkeys(("ranks", "data", "tensor", "pipeline", "context", "expert", "expert_tensor"), "RANKS"),
}  # fmt: skip
"""Fields whose limit is tighter than that of a size: programs and tables are built one by one."""


ALIASES = {
    "tp": "parallel.tensor", "pp": "parallel.pipeline", "dp": "parallel.data", "cp": "parallel.context",
    "ep": "parallel.expert", "etp": "parallel.expert_tensor", "vp": "parallel.virtual_stages",
    "sp": "parallel.sequence_parallel", "zero": "parallel.zero",
    "micro_batch": "parallel.micro_batch", "mbs": "parallel.micro_batch",
    "gbs": "global_batch", "seq": "sequence", "recipe": "training.recipe",
    "framework": "training.framework", "precision": "training.precision",
    "recompute": "training.recompute", "attention": "training.attention", "compile": "training.compile",
    "adapters": "training.adapters", "optimizer": "training.optimizer", "offload": "training.offload",
}  # fmt: skip
"""Short names of a transformer's fields, in files, ``--set`` and searches."""


def with_full_names(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The document with short names, at its top or in ``[parallel]``, put where their fields are."""
    found = {key: dict(value) if isinstance(value, Mapping) else value for key, value in document.items()}
    parallel = found.get("parallel", {})
    short = [(found, key) for key in ALIASES if key in found]
    if isinstance(parallel, dict):
        short += [(parallel, key) for key in ALIASES if key in parallel and ALIASES[key] != f"parallel.{key}"]
    for table, key in short:
        section, _, name = ALIASES[key].rpartition(".")
        into = found.setdefault(section, {}) if section else found
        if not isinstance(into, dict):
            continue  # reading the fields says what is wrong
        value = table.pop(key)
        if into.get(name, value) != value:
            raise InputError(f"{where}: {key}", f"and {ALIASES[key]} are both given", "give one of the two")
        into[name] = value
    return found


OTHER_WORDS = {
    "lora": "training.adapters=lora", "qlora": "training.adapters=qlora", "dora": "training.adapters=dora",
    "lora_rank": "training.adapter_rank", "batch_size": "global_batch", "batch": "global_batch",
    "gradient_accumulation_steps": "global_batch", "seq_len": "sequence", "context_length": "sequence",
    "max_length": "sequence", "block_size": "sequence", "dtype": "training.precision",
    "bf16": "training.precision=bf16", "fp16": "training.precision=fp16", "fp8": "training.precision=fp8",
    "amp": "training.precision=bf16", "fsdp": "parallel.zero=3", "ddp": "parallel.zero=0",
    "checkpointing": "training.recompute=full", "gradient_checkpointing": "training.recompute=full",
    "activation_checkpointing": "training.recompute=full", "flash": "training.attention=flash2",
    "flash_attention": "training.attention=flash2", "experts": "moe.experts",
}  # fmt: skip
"""Fields by names that people know from other tools."""
WITHOUT_EFFECT = ("lr", "learning_rate", "weight_decay", "warmup_steps", "seed", "epochs", "max_steps")
"""What people set for a run and no step's time depends on."""


OF_PLATFORM = ("gpus", "num_gpus", "nodes", "num_nodes", "world_size")
"""What the platform's name states."""


class Fields:
    """One table of the file: typed reads that remember which keys were known.

    ``defaults`` stand in for fields that the file does not state; `has` asks for the file's own.
    """

    def __init__(self, values: object, where: str, defaults: Mapping[str, Any] | None = None) -> None:
        if not isinstance(values, Mapping):
            raise InputError(where, f"must be a table, not {values!r}", "write it as [section]")
        self.values: Mapping[str, Any] = values
        self.where = where
        self.defaults = defaults or {}
        self._known: list[str] = []

    def at(self, key: str) -> str:
        return f"{self.where}: {key}"

    def fail(self, key: str, problem: str, fix: str) -> InputError:
        return InputError(self.at(key), problem, fix)

    def has(self, key: str) -> bool:
        return key in self.values

    def know(self, *keys: str) -> None:
        """Fields that may be stated, and are read only where they are."""
        self._known += keys

    def _get(self, key: str, default: object) -> Any:
        self._known.append(key)
        if key in self.values:
            return self.values[key]
        if key in self.defaults:
            return self.defaults[key]
        if default is None:
            raise self.fail(key, "is missing", "add it; docs/workloads.md lists every field")
        return default

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._get(key, default)
        self._refuse_words(key, value)
        found = number(value, self.at(key), fix="give a whole number")
        if found != int(found):
            raise self.fail(
                key, f"must be a whole number, not {value!r}", "write plain digits without a unit"
            )
        if found < least:
            raise self.fail(key, f"is {value}", f"must be at least {least}")
        check_limit(found, LIMIT_OF.get(key, "SIZE"), self.at(key), "it")
        return int(value)

    def number(
        self, key: str, default: float | None = None, *, least: float = 0.0, most: float = float("inf")
    ) -> float:
        value = self._get(key, default)
        self._refuse_words(key, value)
        found = number(value, self.at(key), fix="give a finite number")
        check_limit(found, "SIZE", self.at(key), "it")
        if not least <= found <= most:
            span = f"at least {least:g}" if most == float("inf") else f"between {least:g} and {most:g}"
            raise self.fail(key, f"is {value}", f"must be {span}")
        return found

    def _refuse_words(self, key: str, value: object) -> None:
        """A file has types: a number in quotes is text."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            thousands = re.fullmatch(r"(\d{1,6})[kK]", str(value))
            plain = (
                f"{1024 * int(thousands[1])} or {1000 * int(thousands[1])}" if thousands else "plain digits"
            )
            raise self.fail(key, f"must be a number, not {value!r}", f"write {plain} without a unit")

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fail(
                key, f"must be true or false, not {value!r}", "write true or false without quotes"
            )
        return value

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        value = str(self._get(key, default))  # a year is a choice with or without quotes
        if value not in choices:
            raise self.fail(key, f"unknown {key} {value!r}", nearest(value, choices))
        return value

    def text(self, key: str, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"must be text, not {value!r}", "write it in quotes")
        return value

    def integers(self, key: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        value = self._get(key, default)
        good = (
            isinstance(value, (list, tuple))
            and bool(value)
            and all(isinstance(v, int) and not isinstance(v, bool) and 0 < v <= limit("SIZE") for v in value)
        )
        if not good:
            raise self.fail(key, f"must be a list of sizes, not {value!r}", "for example [1024, 256, 128]")
        return tuple(value)

    def record(
        self, kind: type[Record], known: Mapping[str, Any], choices: Mapping[str, Sequence[str]] | None = None
    ) -> Record:
        """A dataclass whose fields are read by their names, types and defaults, except those ``known``; text
        is one of its ``choices``. A whole number may be zero where that is its default."""
        found = dict(known)
        for name, type_, default in _plain_fields(kind):  # type: ignore[arg-type]
            if name in found:
                continue
            if choices and name in choices:
                found[name] = self.choice(name, choices[name], default)
            elif type_ is bool:
                found[name] = self.flag(name, bool(default))
            elif type_ is int:
                found[name] = self.integer(name, default, least=0 if default == 0 else 1)
            elif type_ is float:
                found[name] = self.number(name, default)
        return kind(**found)

    def anything(self, key: str, default: object) -> Any:
        return self._get(key, default)

    def section(self, key: str, defaults: Mapping[str, Any] | None = None) -> Fields:
        self._known.append(key)
        return Fields(self.values.get(key, {}), f"{self.where}: [{key}]", defaults)

    def sections(self, key: str) -> list[Fields]:
        self._known.append(key)
        value = self.values.get(key, [])
        if not isinstance(value, list):
            raise self.fail(key, "must be a list of tables", f"write each as [[{key}]]")
        return [Fields(entry, f"{self.where}: {key}[{i}]") for i, entry in enumerate(value)]

    def finish(self, others: Mapping[str, Fields] | None = None) -> None:
        """Everything in the table must have been asked for; ``others``: sections that the field may belong
        to."""
        paths = {
            key: f"{section}.{key}" if section else key
            for section, fields in (others or {}).items()
            for key in fields._known
        }
        fields_of_all = set(paths.values())
        others_words = {**OTHER_WORDS, **ALIASES}
        words = {k: v for k, v in others_words.items() if v.partition("=")[0] in fields_of_all} | paths
        whole = (others or {}).get("") is self
        listed = sorted(fields_of_all - set(others or {})) if whole else self._known
        for key in self.values:
            if key in self._known:
                continue
            if key in paths:
                raise self.fail(key, "unknown field here", f"did you mean {paths[key]}?")
            if key in WITHOUT_EFFECT:
                raise self.fail(key, "does not change the time of a step", "leave it out")
            if key in OF_PLATFORM:
                fix = "-p 2x8xH100-SXM is two nodes of eight; parallel.ranks uses fewer of them"
                raise self.fail(key, "belongs to the platform", fix)
            meant = words.get(key) or words.get(closest(key, words) or "") or closest(key, fields_of_all)
            fix = f"did you mean {meant}?" if meant else nearest(key, listed)
            raise self.fail(key, "unknown field", fix)


@cache
def _plain_fields(kind: type) -> list[tuple[str, type, Any]]:
    """Name, type and default of a dataclass's fields; None where they have no default."""
    types = get_type_hints(kind)
    missing = dataclasses.MISSING
    return [
        (f.name, types[f.name], None if f.default is missing else f.default) for f in dataclasses.fields(kind)
    ]
