"""Workload files, names of models and config.json, checked at the edge."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from stepsight.errors import InputError
from stepsight.hardware.spec import GpuSpec
from stepsight.inputs import is_there, read_json
from stepsight.records import Assignments, Table, assigned, either, nearest, override, read_toml
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.dlrm.config import EXCHANGE_FIELDS, read_dlrm
from stepsight.workload.fields import ALIASES, with_full_names
from stepsight.workload.llm.config import LanguageConfig, read_language, usual_framework
from stepsight.workload.llm.hugging_face import from_hugging_face
from stepsight.workload.llm.recipe import families, recipe_of
from stepsight.workload.llm.spread import (
    layouts,
    leaves_layout_open,
    replicas_without_sequences,
    splits,
)
from stepsight.workload.llm.workload import LanguageWorkload, read_transformer

Workload = DlrmWorkload | LanguageWorkload
KINDS = ("dlrm", "transformer")
Job = TypeVar("Job")


def load_workload(
    path: str | Path, overrides: Assignments = (), *, tables: str | Path | None = None
) -> Workload:
    """Read a workload file or a model's config.json, or take a well-known model by its name; ``overrides``
    (``key.path=value``) are set before it is checked. ``tables``: a file with a DLRM's tables instead of its
    own."""
    if is_name(path) and tables is None:
        return load_model(str(path), overrides)
    if Path(path).suffix == ".py":
        fix = f"capture it: stepsight capture {path} -p PLATFORM"
        raise InputError(str(path), "is a script, not a description of a model", fix)
    document = (
        named(str(path)) if is_name(path) else read_config(path) if is_config(path) else read_toml(path)
    )
    if tables is not None:
        if document.get("kind") != "dlrm":
            raise InputError(str(path), "is not a DLRM", "only those have embedding tables")
        document["tables"] = {"file": str(tables)}
    return changed(document, overrides, str(path))


def load_model(name: str, overrides: Assignments = ()) -> Workload:
    """A well-known model by its name, with one sequence per replica unless ``overrides`` give a batch."""
    return changed(named(name), overrides, f"model {name}")


def changed(document: Table, overrides: Assignments, path: str) -> Workload:
    """A description with fields changed as ``--set`` changes them."""
    changes = {ALIASES.get(key, key): value for key, value in assigned(overrides)}
    document = with_full_names(document, path) if document.get("kind") != "dlrm" else document
    if "global_batch" in changes:
        document.pop("batch_per_rank", None)
    if "parallel.ranks" in changes and "parallel.data" not in changes:
        _forget(document, "parallel", "data")  # what tensor and pipeline groups leave is data-parallel
    for one, other in (("recipe", "framework"), ("framework", "recipe")):
        if f"training.{one}" in changes and f"training.{other}" not in changes:
            _forget(document, "training", other)
    return parse_workload(override(document, changes, str(path)), str(path))


def _forget(document: Table, section: str, field: str) -> None:
    """What another field overrules."""
    if isinstance(document.get(section), dict):
        document[section].pop(field, None)


def with_model(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """``model = "llama3-8b"``: the shipped sizes, under what the file itself says."""
    name = document.get("model")
    if not isinstance(name, str):
        return document
    rest = {key: value for key, value in document.items() if key != "model"}
    usual = {key: value for key, value in shipped_sizes(name).items() if key not in rest}
    return {"kind": "transformer", **usual, **rest}


def parse_workload(document: Mapping[str, Any], where: str) -> Workload:
    """A workload from the content of a workload file; ``where`` names it in errors.

    A file that gives neither ``ranks`` nor ``data`` leaves the number of ranks to the platform
    (`resolve`); until then it has as few as it can.
    """
    if document.get("kind", "transformer") == "transformer":
        document = with_full_names(document, where)
    document = with_model(document)
    if _leaves_ranks_open(document):
        fewest = _with_some_batch(_without_replicas(_on_fewest_ranks(document)))
        found = _of_open_stack(replace(_parse(fewest, where), open_ranks=document), document)
    else:
        found = _parse(document, where)
    if isinstance(found, LanguageWorkload) and leaves_layout_open(found.config, document):
        found = replace(found, open_layout=document)
    return found


def _of_open_stack(workload: Workload, document: Mapping[str, Any]) -> Workload:
    if isinstance(workload, LanguageWorkload) and workload.unnamed is not None:
        return replace(workload, unnamed=document)
    return workload


def with_recipe(workload: Job, recipe: str | None) -> Job | LanguageWorkload:
    """The job in the training stack of a recipe (empty: the usual one), if its file leaves that open; as it
    is where it does not, where the stack has no such job, and without a recipe."""
    if not isinstance(workload, LanguageWorkload) or workload.unnamed is None or recipe is None:
        return workload
    document = workload.unnamed
    name = recipe or families()[usual_framework(document)].name
    if name == workload.config.recipe:
        return workload
    recipe_of(name, "platform: learned_from.recipe")
    training = {**document.get("training", {}), **({"recipe": recipe} if recipe else {})}
    try:
        found = parse_workload({**document, "training": training}, workload.config.source)
    except InputError:
        return workload
    return replace(found, unnamed=document) if isinstance(found, LanguageWorkload) else workload


def resolve(workload: Workload, gpus: int, gpu: GpuSpec | None = None, per_node: int = 8) -> Workload:
    """The workload with what its file leaves to the platform: the number of ranks, the layout of a mixture of
    experts, and what a recipe picks by GPU. ``per_node``: GPUs that one link joins.

    Tensor and pipeline groups stay as they are; the rest is data-parallel. FSDP by default gives way to
    Megatron where its ranks are more than a batch has sequences.
    """
    if gpu is None or not isinstance(workload, LanguageWorkload):
        return _on_platform(workload, gpus)
    if _lacks_sequences_for_fsdp(workload, gpus):
        workload = with_recipe(workload, families()["megatron"].name)
    layout = workload.open_layout
    if layout is not None and workload.config.model.experts:
        return _spread(workload, layout, gpus, gpu, per_node)
    split = None if layout is None else _split(workload, layout, gpus, gpu, per_node)
    return split or _replicated(workload, gpus, gpu)


def _replicated(workload: LanguageWorkload, gpus: int, gpu: GpuSpec) -> LanguageWorkload:
    found = _on_platform(workload, gpus)
    return found.on(gpu) if isinstance(found, LanguageWorkload) else workload


def _lacks_sequences_for_fsdp(workload: LanguageWorkload, gpus: int) -> bool:
    document = workload.unnamed
    if document is None or workload.open_ranks is None or workload.config.framework.name != "torchtitan":
        return False
    asked = "zero" in document.get("parallel", {})
    return not asked and replicas_without_sequences(workload.config, document, gpus)


def _split(
    workload: LanguageWorkload, document: Mapping[str, Any], gpus: int, gpu: GpuSpec, per_node: int
) -> LanguageWorkload | None:
    """A model without experts in the least tensor and pipeline groups that fit; None where replicas do, or
    nothing does."""
    given = workload.config
    short = replicas_without_sequences(given, document, gpus)
    if not short and _replicated(workload, gpus, gpu).fits(gpu):
        return None
    return _first_that_fits(given, splits(given, document, gpus, per_node, gpu.usable_bytes), gpu)


def _first_that_fits(
    given: LanguageConfig, documents: Iterator[Mapping[str, Any]], gpu: GpuSpec
) -> LanguageWorkload | None:
    for changed in documents:
        try:
            found = LanguageWorkload(read_language(changed, given.source)).on(gpu)
        except InputError:  # another layout may do
            continue
        if found.fits(gpu):
            left_open = found.config.left_open | {"layout"}
            return replace(found, config=replace(found.config, left_open=left_open, differs=given.differs))
    return None


def _spread(
    workload: LanguageWorkload, document: Mapping[str, Any], gpus: int, gpu: GpuSpec, per_node: int
) -> LanguageWorkload:
    """A mixture of experts in the first layout that fits; where none does, fully sharded."""
    given = workload.config
    found = _first_that_fits(given, layouts(given, document, gpus, per_node), gpu)
    if found is not None:
        return found
    parallel = {"ranks": gpus, "zero": 3, **document.get("parallel", {})}
    if parallel["ranks"] == 1:
        return replace(workload, open_ranks=None).on(gpu)
    sharded = read_transformer({**document, "parallel": parallel}, given.source)
    left_open = sharded.config.left_open | given.left_open & {"recompute"}
    return replace(sharded, config=replace(sharded.config, left_open=left_open)).on(gpu)


def _on_platform(workload: Workload, gpus: int) -> Workload:
    if workload.open_ranks is None:
        return workload
    group = workload.open_ranks.get("parallel", {}).get("shard_group")
    if isinstance(group, int) and group > 0:
        _on_all(workload, gpus)  # says so where the group does not divide the ranks
    try:
        return _on_most(workload, gpus)
    except InputError:  # of fewer ranks, because of experts: the fault may be theirs
        _on_all(workload, gpus)
        raise


def _on_most(workload: Workload, gpus: int) -> Workload:
    """On as many as its experts can be spread over."""
    assert workload.open_ranks is not None
    if gpus < 2 * workload.ranks:  # as few ranks as there can be: fields that need more are refused
        _parse(_on_fewest_ranks(workload.open_ranks), workload.config.source)
        return workload
    return _on_ranks(workload, gpus // workload.ranks * workload.ranks)


def _on_all(workload: Workload, gpus: int) -> None:
    """Read it on as many as its tensor, context and pipeline groups can use, whatever else divides them."""
    if not isinstance(workload, LanguageWorkload):
        return
    s = workload.config.layout
    inside = s.tensor * s.context * s.pipeline
    if gpus >= inside:
        _on_ranks(workload, gpus // inside * inside)


def _on_ranks(workload: Workload, ranks: int) -> Workload:
    assert workload.open_ranks is not None
    parallel = {**workload.open_ranks.get("parallel", {}), "ranks": ranks}
    found = _parse({**workload.open_ranks, "parallel": parallel}, workload.config.source)
    if isinstance(workload, LanguageWorkload) and isinstance(found, LanguageWorkload) and workload.unnamed:
        return replace(found, unnamed={**workload.unnamed, "parallel": parallel})
    return found


def _on_fewest_ranks(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document with as few data-parallel ranks as its experts and sharding groups can be spread over."""
    parallel = document.get("parallel", {})
    names = ("expert", "expert_tensor", "tensor", "context", "shard_group")
    sizes = [parallel.get(name, 1) for name in names]
    sizes = [size or 1 if isinstance(size, int) else size for size in sizes]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return document  # reading the fields says what is wrong
    experts, parts, tensor, context, group = sizes
    experts *= parts
    data = math.lcm(experts // math.gcd(experts, tensor * context), group // math.gcd(group, context))
    return document if data == 1 else {**document, "parallel": {**parallel, "data": data}}


def _with_some_batch(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document with a batch that its ranks can share, until the platform says how many they are."""
    batch, data = document.get("global_batch"), document.get("parallel", {}).get("data", 1)
    plain = isinstance(batch, int) and isinstance(data, int) and data > 0
    if not plain or not batch or batch % data == 0:
        return document
    return {**document, "global_batch": data * -(-batch // data)}


_OF_REPLICAS = ("zero", "shard_group", "reshard", "prefetch", "bucket_mb", "overlap_gradients")
"""Fields of ``parallel`` that one replica of a transformer has no use for."""


def _without_replicas(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document without what only several replicas have, until the platform says how many there are."""
    parallel = document.get("parallel", {})
    dropped = EXCHANGE_FIELDS if document.get("kind") == "dlrm" else _OF_REPLICAS
    if document.get("kind", "transformer") not in KINDS:
        return document
    if parallel.get("data", 1) != 1 or parallel.get("context", 1) != 1:
        return document
    return {**document, "parallel": {k: v for k, v in parallel.items() if k not in dropped}}


def _leaves_ranks_open(document: Mapping[str, Any]) -> bool:
    """Nothing in the file fixes how many ranks there are; a plan for given ranks would."""
    parallel = document.get("parallel", {})
    if not isinstance(parallel, Mapping):
        return False  # reading the fields says what is wrong
    return not {"ranks", "data"} & set(parallel) and isinstance(parallel.get("sharding", ""), str)


def _parse(document: Mapping[str, Any], where: str) -> Workload:
    kind = document.get("kind")
    if kind == "dlrm":
        return DlrmWorkload(read_dlrm(document, where))
    if kind == "transformer":
        return read_transformer(document, where)
    if kind is None:
        raise InputError(f"{where}: kind", "is missing", f'write kind = "{KINDS[0]}" or "{KINDS[1]}"')
    raise InputError(f"{where}: kind", f"unknown kind {kind!r}", nearest(str(kind), KINDS))


CATALOGUE = Path(__file__).parent / "llm" / "catalogue"


@cache
def shipped() -> Mapping[str, Table]:
    """The descriptions of well-known models; some differ from another in little (``like``)."""
    found = read_toml(CATALOGUE / "models.toml")
    return {
        name: {**found.get(sizes.get("like", ""), {}), **{k: v for k, v in sizes.items() if k != "like"}}
        for name, sizes in found.items()
    }


def is_name(path: str | Path) -> bool:
    """Whether it can only be meant as a model's name: ``llama3-8b``, a hub's ``meta-llama/Llama-3.1-8B``."""
    text = str(path)
    plain = text.count("/") <= 1 and not text.startswith((".", "/")) and not text.endswith((".toml", ".json"))
    owner = text.partition("/")[0]
    return plain and not is_there(path) and not (is_there(owner) and Path(owner).is_dir())


@cache
def model_name(name: str) -> str:
    """The shipped model that a name means, with or without its owner, dashes and suffixes on a hub."""
    known: dict[str, str] = {
        **read_toml(CATALOGUE / "short_names.toml"),
        **{_letters(one): one for one in shipped()},
    }
    short = rest = _OWNER.sub("", name.lower().rpartition("/")[2])
    found = known.get(_letters(short))
    while found is None and _SUFFIX.search(rest):
        rest = _SUFFIX.sub("", rest)
        found = known.get(_letters(rest))
    if found is None:
        near = _close_names(short)
        raise InputError(
            name, "unknown model, and no such file",
            f"did you mean {either(near)}?" if near
            else "give a config.json, a workload file, or its script: stepsight capture train.py",
        )  # fmt: skip
    return found


def _close_names(name: str) -> list[str]:
    """Up to three shipped models with names like this one, those of its family first."""
    stem = _STEM.match(name)
    family = [one for one in shipped() if stem and _STEM.match(one)[0] == stem[0]]  # type: ignore[index]
    found = [*difflib.get_close_matches(name, family, 3, 0.3), *difflib.get_close_matches(name, shipped(), 3)]
    return list(dict.fromkeys(found))[:3]


_STEM = re.compile(r"[a-z]+")
_OWNER = re.compile(r"^(?:meta|nvidia)-(?=llama|nemotron)")
_SUFFIX = re.compile(
    r"-(?:hf|base|instruct|chat|it|pt|uncased|cased|1124|bf16|\d+k)$|(?<=\d[bm])((?:-[a-z]+)*)-v\d[\d.]*$"
)
"""What hubs append to the names of the same sizes; a version follows a size, else it names a model
(DeepSeek-V3.2)."""


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
    sizes = _with_shipped_sequence(from_hugging_face(config, where))
    return _workload(sizes, str(config.get("_name_or_path") or Path(where).stem))


def _with_shipped_sequence(sizes: Table) -> Table:
    """The sizes with the sequence that the model has by its name, where it is shipped."""

    def of(one: Table) -> list[Any]:
        return [one.get(name) for name in ("family", "layers", "hidden", "heads", "kv_heads", "vocab")]

    plain = {**sizes, "kv_heads": sizes.get("kv_heads") or sizes["heads"]}
    same = (one["sequence"] for one in shipped().values()
            if of({"kv_heads": one["heads"], **one}) == of(plain))  # fmt: skip
    return {**sizes, "sequence": min(next(same, sizes["sequence"]), sizes["sequence"])}


def is_config(path: str | Path) -> bool:
    """Whether this is read as a model's configuration: any JSON, so that its mistakes are named as such, or a
    folder with a config.json, as models are stored."""
    return Path(path).suffix == ".json" or (Path(path) / "config.json").is_file()


def _workload(sizes: Table, name: str) -> Table:
    return {"kind": "transformer", "name": Path(name).name, **sizes, "training": {}, "parallel": {}}
