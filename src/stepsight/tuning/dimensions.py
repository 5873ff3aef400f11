"""What can be varied: names people type, the fields they stand for, and the values worth a trial."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepsight.errors import InputError
from stepsight.records import nearest
from stepsight.tables.sharders import SEARCHED
from stepsight.tuning.trial import Setting
from stepsight.workload.fields import ALIASES as SHORT_NAMES
from stepsight.workload.fields import Fields
from stepsight.workload.llm.checks import PLAIN_ATTENTION
from stepsight.workload.llm.config import module_lists
from stepsight.workload.llm.layout import CONTEXT_KINDS
from stepsight.workload.llm.model import read_model
from stepsight.workload.llm.recipe import Framework, Recipe, recipe_of

ALIASES = {
    **SHORT_NAMES, "gpus": "parallel.ranks", "tensor": "parallel.tensor", "pipeline": "parallel.pipeline",
    "context": "parallel.context", "context_kind": "parallel.context_kind", "expert": "parallel.expert",
    "virtual_stages": "parallel.virtual_stages", "schedule": "parallel.schedule", "data": "parallel.data",
    "sequence_parallel": "parallel.sequence_parallel", "sharding": "parallel.sharding",
    "ranks": "parallel.ranks",
}  # fmt: skip
"""What people write for a field; any other field is written as its path."""
HEADINGS = {ALIASES[name]: name for name in ("tp", "pp", "cp", "ep", "sp", "mbs", "vp", "dp", "gpus")}
"""How a field is headed in a table, where not by the last part of its path."""
STACKS = ("training.framework", "training.recipe")
"""Fields that name a training stack: a search that compares stacks tries the layouts of each."""
RECOMPUTE, STAGES = "training.recompute", "parallel.virtual_stages"
VIRTUAL_STAGES = (1, 2, 4)
LONG_SEQUENCE = 16384
"""Tokens from which on context parallelism is tried unasked."""


def known_recipe(name: str) -> Recipe | None:
    """The recipe of a name, or of a framework's; None for a name that reading the workload refuses."""
    try:
        return recipe_of(name)
    except InputError:
        return None


@dataclass(frozen=True, slots=True)
class Model:
    """What the values of a dimension depend on; ``stacks``: frameworks and recipes that are compared."""

    document: Mapping[str, Any]
    gpus: Sequence[int]
    per_node: int
    global_batch: int
    stacks: Sequence[Setting] = field(default=())

    @property
    def recipes(self) -> list[Recipe]:
        """Those that are compared, or the one that the document names."""
        training = self.document.get("training")
        stated = training if isinstance(training, Mapping) else {}
        named = self.stacks or [stated.get("recipe") or stated.get("framework") or ""]
        return [one for name in named if (one := known_recipe(str(name)))]

    def number(self, name: str, default: int = 1) -> int:
        value = self.document.get(name, default)
        return value if isinstance(value, int) and not isinstance(value, bool) else default


def short_name(path: str) -> str:
    return HEADINGS.get(path, path.rpartition(".")[2])


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Short names that tell these fields apart: where two would be the same, with as much of the path as it
    takes (``nic.gbps``, ``link.gbps``)."""
    listed = list(dict.fromkeys(paths))
    names = {path: short_name(path) for path in listed}
    for parts in range(2, 1 + max((path.count(".") + 1 for path in listed), default=0)):
        counts = Counter(names.values())
        for path in listed:
            if counts[names[path]] > 1:
                names[path] = ".".join(path.split(".")[-parts:])
    return names


def _powers(most: int) -> list[int]:
    return [1 << i for i in range(max(most, 1).bit_length())]


def _tensor(m: Model) -> list[int]:
    """Inside a node, and no more than there are heads."""
    heads = m.number("kv_heads", m.number("heads"))
    return [t for t in _powers(min(m.per_node, max(m.gpus))) if heads % t == 0]


def _pipeline(m: Model) -> list[int]:
    layers = m.number("layers")
    return [p for p in range(1, min(layers, max(m.gpus)) + 1) if layers % p == 0 and max(m.gpus) % p == 0]


def _experts(m: Model) -> list[int]:
    moe = m.document.get("moe")
    count = moe.get("experts", 1) if isinstance(moe, Mapping) else 1
    return [e for e in _powers(min(int(count), max(m.gpus))) if int(count) % e == 0]


def _virtual_stages(m: Model) -> list[int]:
    """A few, and for each pipeline as many as the recipe has there."""
    batches = _powers(m.global_batch)
    own = {n for p in _pipeline(m) for k in batches for n in usual_stages(m, p, p * k)}
    return sorted({*VIRTUAL_STAGES, *own})


def usual_stages(m: Model, pipeline: int, micro_batches: int) -> set[int]:
    """Virtual stages that recipes have where nobody states them."""
    return {one.virtual_stages(m.number("layers"), pipeline, micro_batches) for one in m.recipes}


def wrong_recomputation(recompute: object, framework: Framework, attention: str) -> str:
    """Why a framework cannot recompute that, or need not; empty where it can."""
    if is_modules(recompute) and framework.selects_products:
        return "only Megatron recomputes modules by name"
    if recompute == "selective" and not framework.selects_products and attention not in PLAIN_ATTENTION:
        return "selective recomputation of Megatron saves nothing with flash attention"
    return ""


def is_modules(recompute: object) -> bool:
    """Whether a value of ``recompute`` lists modules."""
    return isinstance(recompute, str) and recompute.startswith("[")


def _recompute(m: Model) -> list[Setting]:
    """What the frameworks can do, cheapest first."""
    training = m.document.get("training")
    attention = str(training.get("attention", "flash2")) if isinstance(training, Mapping) else "flash2"
    frameworks = [one.framework for one in m.recipes]
    values: list[Setting] = ["none", "selective"]
    if any(not one.selects_products for one in frameworks):
        lists = module_lists(read_model(Fields(m.document, "")))
        values += [json.dumps(modules, separators=(",", ":")) for modules in lists]
    values.append("full")
    if not frameworks:
        return values
    return [v for v in values if not all(wrong_recomputation(v, one, attention) for one in frameworks)]


VALUES: dict[str, Callable[[Model], Sequence[Setting]]] = {
    "parallel.tensor": _tensor,
    "parallel.pipeline": _pipeline,
    "parallel.zero": lambda m: [0, 1, 2, 3],
    "parallel.micro_batch": lambda m: _powers(max(1, m.global_batch)),
    "training.recompute": _recompute,
    STAGES: _virtual_stages,
    "parallel.context": lambda m: _powers(8) if m.number("sequence") >= LONG_SEQUENCE else [1, 2, 4],
    "parallel.context_kind": lambda m: list(CONTEXT_KINDS),
    "parallel.expert": _experts,
    "training.precision": lambda m: ["bf16", "fp8"] if m.document.get("kind") != "dlrm" else ["fp32", "tf32"],
    "training.attention": lambda m: ["eager", "flash2"],
    "training.compile": lambda m: [False, True],
    "parallel.schedule": lambda m: ["1f1b", "afab", "zero_bubble"],
    "parallel.sequence_parallel": lambda m: [False, True],
    "parallel.sharding": lambda m: [SEARCHED],
}
"""Values of a dimension where the caller gives none."""

LANGUAGE = (
    "parallel.tensor", "parallel.pipeline", "parallel.zero", "parallel.micro_batch", "training.recompute",
    "parallel.virtual_stages",
)  # fmt: skip
DLRM = ("parallel.sharding", "batch", "training.precision")
SHARED = ("training.precision",)
"""Dimensions that all models have."""


def default_dimensions(m: Model) -> tuple[str, ...]:
    """What is varied unasked."""
    if m.document.get("kind") == "dlrm":
        return DLRM
    more = [p for p, on in (("parallel.expert", "moe" in m.document),
                            ("parallel.context", m.number("sequence") >= LONG_SEQUENCE)) if on]  # fmt: skip
    return (*LANGUAGE, *more)


def values_of(path: str, m: Model) -> list[Setting]:
    """The values worth a trial, or an error for a dimension that the model lacks."""
    if path == "batch" and m.number("batch", 0):
        batch = m.number("batch")
        return [batch // 2, batch, 2 * batch]
    if path not in VALUES:
        known = [name for name, stands_for in ALIASES.items() if stands_for in VALUES]
        raise InputError(
            f"--over {short_name(path)}",
            "has no values to try by itself",
            f"give some, {path}=a,b,c; {nearest(path, known)}",
        )
    is_dlrm = m.document.get("kind") == "dlrm"
    if path not in SHARED and (path in DLRM) != is_dlrm:
        raise InputError(f"--over {short_name(path)}", "is a dimension that this model lacks", "leave it out")
    values = list(VALUES[path](m))
    if path == "parallel.expert" and values == [1]:
        raise InputError("--over expert", "the model has no experts", "leave it out")
    return values


Over = dict[str, list[Setting] | None]
"""Values by field; ``None`` where only the field is named."""


def parsed_over(over: Sequence[str]) -> Over:
    """``--over tp,pp`` names dimensions, ``--over batch=512,1024`` gives values, ``tp,zero=0,1`` does both.

    A part with ``=`` begins a field; parts after it are its values, unless one is a dimension's name.
    """
    found: Over = {}
    for text in over:
        values: list[Setting] | None = None
        for part in _parts(text):
            name, equals, first = _divided(part)
            if equals:
                values = [_value(first)] if first else []
                _put(found, name, values)
            elif values is None or part in ALIASES:
                values = None
                _put(found, part, None)
            else:
                values.append(_value(part))
    for path, listed in found.items():
        if listed is not None and not listed:
            raise InputError(f"--over {path}=", "names no value", f"write {path}=a,b,c")
    if over and not found:
        raise InputError("--over", "names no field", "write --over tp,pp or --over batch=512,1024")
    return found


def _put(found: Over, name: str, values: list[Setting] | None) -> None:
    if not name:
        raise InputError("--over", "names no field before =", "write --over batch=512,1024")
    path = ALIASES.get(name, name)
    if path in found:
        raise InputError(f"--over {name}", "is given twice", "give all its values at once, a,b,c")
    found[path] = values


def _parts(text: str) -> Iterator[str]:
    """Cut at commas outside of brackets."""
    depth, now = 0, ""
    for letter in (*text, ","):
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth <= 0:
            if now.strip():
                yield now.strip()
            now = ""
        else:
            now += letter
    if now.strip(", "):
        raise InputError(f"--over {text}", "a bracket is not closed", "write lists as [1024,256]")


def _divided(part: str) -> tuple[str, str, str]:
    """A field's name and its first value; a part in brackets or quotes is a value as a whole."""
    if part[0] in "[{\"'":
        return "", "", part
    name, equals, first = part.partition("=")
    return name.strip(), equals, first.strip()


def _value(text: str) -> Setting:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text.replace("_", ""))
        except ValueError:
            continue
    return text.strip("\"'")
