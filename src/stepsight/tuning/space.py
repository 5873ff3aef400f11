"""The legal configurations of a workload: every combination of values that the rules allow.

The rules are those of the frameworks that run such jobs; each refusal has its reason, and the reasons are
counted, so that an empty space says why it is empty.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from stepsight.errors import InputError
from stepsight.tuning.dimensions import (
    RECOMPUTE,
    STACKS,
    STAGES,
    VIRTUAL_STAGES,
    Model,
    default_dimensions,
    known_recipe,
    usual_stages,
    values_of,
    wrong_recomputation,
)
from stepsight.tuning.trial import Setting
from stepsight.workload.llm.layout import DEFAULT_BATCH

DEPENDENT = (
    "data", "ranks", "schedule", "virtual_stages", "shard_group", "reshard", "prefetch", "bucket_mb",
    "sequence_parallel", "async_tensor", "context_kind",
)  # fmt: skip
"""Fields of [parallel] that only mean something for one layout: they are set anew for each."""
MOST_CANDIDATES = 200_000
"""Combinations that are enumerated at most, without those of recomputation."""


@dataclass(frozen=True, slots=True)
class Space:
    """The document without what is varied, its candidates, and why combinations were refused.

    ``cheapest_first``: kinds of recomputation in this order, where nobody asked for particular ones.
    """

    document: dict[str, Any]
    candidates: tuple[dict[str, Setting], ...]
    refused: Mapping[str, int]
    dimensions: Mapping[str, tuple[Setting, ...]]
    cheapest_first: tuple[Setting, ...] = ()


def space(
    document: Mapping[str, Any], *, gpus: Sequence[int], per_node: int, global_batch: int | None = None,
    over: Mapping[str, list[Setting] | None] | None = None,
) -> Space:  # fmt: skip
    """All legal configurations of a document on this many GPUs."""
    over = over or {}
    stacks = [value for path in STACKS for value in over.get(path) or ()]
    is_dlrm = document.get("kind") == "dlrm"
    batch = 0 if is_dlrm else global_batch or _global_batch(document, max(gpus))
    model = Model(document, gpus, per_node, batch, stacks)
    chosen = dict(over)
    if not set(over) - set(STACKS):
        chosen |= dict.fromkeys(default_dimensions(model))
    dimensions: dict[str, tuple[Setting, ...]] = {
        path: tuple(values_of(path, model) if given is None else given) for path, given in chosen.items()
    }
    base = _without(document, dimensions, model)
    kept = {f"parallel.{k}": 3 if v == "fsdp" else v for k, v in base["parallel"].items()}
    total = len(gpus) * math.prod(len(values) for path, values in dimensions.items() if path != RECOMPUTE)
    if total > MOST_CANDIDATES:
        raise InputError(
            "--over", f"spans {total:,} combinations", f"give fewer values (at most {MOST_CANDIDATES:,})"
        )
    open_stages = STAGES in chosen and chosen[STAGES] is None
    trainings = {path: values for path, values in dimensions.items() if path.startswith("training.")}
    layouts = {path: values for path, values in dimensions.items() if path not in trainings}
    found: list[dict[str, Setting]] = []
    refused: Counter[str] = Counter()
    for sizes in product(gpus, *layouts.values()):
        settings = dict(zip(("parallel.ranks", *layouts), sizes, strict=True))
        made = settings if is_dlrm else _spread(settings, kept, model)
        reason = made if isinstance(made, str) else _refusal(made, model, kept)
        if not reason and open_stages and isinstance(made, dict):
            reason = _unusual_stages(made, model, kept)
        if isinstance(made, str) or reason:
            refused[reason] += math.prod(map(len, trainings.values()))
            continue
        for values in product(*trainings.values()):
            whole = {**made, **dict(zip(trainings, values, strict=True))}
            if wrong := _not_of_stack(whole, model, kept):
                refused[wrong] += 1
            else:
                found.append({path: whole[path] for path in (*dimensions, *made) if path in whole})
    distinct = list({tuple(sorted(c.items(), key=str)): c for c in found}.values())
    cheapest_first = dimensions.get(RECOMPUTE, ()) if chosen.get(RECOMPUTE) is None else ()
    return Space(base, tuple(distinct), dict(refused.most_common()), dimensions, cheapest_first)


def _global_batch(document: Mapping[str, Any], gpus: int) -> int:
    """What the document states; where it leaves the ranks open, its batch per replica on all of them."""
    parallel = document.get("parallel") or {}
    if isinstance(document.get("global_batch"), int):
        return int(document["global_batch"])
    batch = document.get("batch_per_rank", DEFAULT_BATCH)
    if not isinstance(batch, int) or not isinstance(parallel, Mapping):
        raise InputError("global_batch", "the model states no batch", "give --global-batch")

    def size(name: str, default: int = 1) -> int:
        value = parallel.get(name, default)
        return value if isinstance(value, int) and value > 0 else default

    inside = size("tensor") * size("pipeline") * size("context")
    return batch * size("data", max(1, size("ranks", gpus) // inside))


def _without(document: Mapping[str, Any], varied: Mapping[str, Any], m: Model) -> dict[str, Any]:
    """The document less the fields that every candidate sets itself."""
    base = {k: (dict(v) if isinstance(v, dict) else v) for k, v in document.items()}
    parallel = base.setdefault("parallel", {})
    if not isinstance(parallel, dict):
        raise InputError("parallel", "is not a section", "write [parallel]")
    if base.get("kind") == "dlrm":
        parallel.pop("ranks", None)
        return base
    for name in DEPENDENT:
        parallel.pop(name, None)
    for path in varied:
        section, _, name = path.rpartition(".")
        table = base.get(section, {}) if section else base
        if isinstance(table, dict):
            table.pop(name, None)
    base.pop("batch_per_rank", None)
    base["global_batch"] = m.global_batch
    return base


def _whole(value: Setting | None, default: int) -> int:
    """A setting as a number; what is none is left to the workload, which refuses it with its reason."""
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) else default


def _reader(made: Mapping[str, Setting], kept: Mapping[str, Setting]) -> Callable[..., int]:
    """Sizes of [parallel] by name: a candidate's own, else the document's, else one."""

    def of(name: str, default: int = 1) -> int:
        return _whole(made.get(f"parallel.{name}", kept.get(f"parallel.{name}", default)), default)

    return of


def _spread(
    settings: Mapping[str, Setting], kept: Mapping[str, Setting], m: Model
) -> dict[str, Setting] | str:
    """A candidate's settings with what follows from them, less what has no effect there."""
    made = dict(settings)
    of = _reader(made, kept)
    gpus, inside = of("ranks"), of("tensor") * of("pipeline") * of("context")
    if inside < 1 or gpus % inside:
        return "tensor × pipeline × context does not divide the GPUs"
    data = gpus // inside
    if made.get("parallel.data", data) != data:
        return "data × tensor × pipeline × context is not the number of GPUs"
    del made["parallel.ranks"]
    made["parallel.data"] = data
    if of("tensor") > 1:
        made.setdefault("parallel.sequence_parallel", True)
    else:
        made.pop("parallel.sequence_parallel", None)
    stated = m.document.get("parallel", {}).get("context_kind")
    if of("context") == 1:
        made.pop("parallel.context_kind", None)
    elif stated:
        made.setdefault("parallel.context_kind", stated)
    if of("pipeline") == 1:
        if of("virtual_stages") > 1:
            return "interleaved stages need a pipeline"
        made.pop("parallel.virtual_stages", None)
        made.pop("parallel.schedule", None)
    elif of("virtual_stages") > 1:
        made.pop("parallel.schedule", None)
    if data * of("context") == 1 and of("zero", 0) > 0:
        return "ZeRO needs more than one replica"
    return made


def _unusual_stages(made: Mapping[str, Setting], m: Model, kept: Mapping[str, Setting]) -> str:
    """Virtual stages beyond a few are tried where a recipe has them."""
    stages = _whole(made.get(STAGES), 1)
    if stages in VIRTUAL_STAGES:
        return ""

    of = _reader(made, kept)
    batch = _whole(made.get("global_batch"), m.global_batch)
    usual = usual_stages(m, of("pipeline"), batch // (of("data") * of("micro_batch")))
    return "" if stages in usual else "no recipe has this many virtual stages"


def _not_of_stack(made: Mapping[str, Setting], m: Model, kept: Mapping[str, Setting]) -> str:
    """Why the candidate's framework does not shard or recompute so; empty where it does."""
    training = m.document.get("training") or {}

    def stated(name: str, default: str = "") -> str:
        return str(made.get(f"training.{name}", training.get(name, default)))

    usual = "torchtitan" if str(made.get("parallel.zero", 0)) in ("3", "fsdp") else "megatron"
    recipe = known_recipe(stated("recipe") or stated("framework", usual))
    if recipe is None:
        return ""
    of = _reader(made, kept)
    if recipe.framework.shards_gradients and of("zero", 0) == 1 and of("pipeline") == 1:
        return f"{recipe.framework.name} shards gradients with the optimizer state: ZeRO 2, not 1"
    recompute = made.get(RECOMPUTE, training.get("recompute", "none"))
    return wrong_recomputation(recompute, recipe.framework, stated("attention", "flash2"))


def _refusal(made: Mapping[str, Setting], m: Model, kept: Mapping[str, Setting]) -> str:
    """Why a candidate is not legal; empty where it is."""
    of = _reader(made, kept)
    if m.document.get("kind") == "dlrm":
        batch = _whole(made.get("batch"), m.number("batch"))
        return "batch does not divide by the GPUs" if batch % of("ranks") else ""
    tensor, pipeline, data = of("tensor"), of("pipeline"), of("data")
    micro, pieces = of("micro_batch"), pipeline * of("virtual_stages")
    batch = _whole(made.get("global_batch"), m.global_batch)
    heads, kv_heads, layers = m.number("heads"), m.number("kv_heads", m.number("heads")), m.number("layers")
    if heads % tensor or kv_heads % tensor:
        return "tensor does not divide the attention heads"
    if pieces < 1 or layers % pieces:
        return "pipeline stages do not divide the layers"
    if micro < 1 or batch % (data * micro):
        return "data × micro-batch does not divide the global batch"
    if of("virtual_stages") > 1 and (batch // (data * micro)) % pipeline:
        return "an interleaved pipeline needs micro-batches in multiples of its stages"
    if of("zero", 0) >= 2 and pipeline > 1:
        return "ZeRO 2 and 3 do not go with a pipeline"
    if of("expert") > 1 and (data * tensor * of("context")) % of("expert"):
        return "expert does not divide the ranks of a stage"
    if m.number("sequence") % of("context"):
        return "context does not divide the sequence"
    return ""
