"""A DLRM as its TOML file describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from stepsight.constants import area
from stepsight.dtypes import dtype_bytes
from stepsight.errors import InputError
from stepsight.records import nearest
from stepsight.tables.bags import spread_of
from stepsight.tables.files import read_tables
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.indices.index_files import open_index_file
from stepsight.tables.lookup import EMBEDDING_BAG, FBGEMM, SCATTERED, SORTED
from stepsight.tables.plan import Plan
from stepsight.tables.sharders import PLACEMENTS
from stepsight.tables.table import CACHE_SHARE, CACHED, DEVICE, MOST_BAG_SPREAD, ROW_DTYPES, Table
from stepsight.tables.table import PLACEMENTS as TABLE_PLACEMENTS
from stepsight.tables.torchrec_plan import planned_ranks, read_plan
from stepsight.terminal import counted
from stepsight.workload.fields import Fields
from stepsight.workload.training import Training

METHOD_SPREAD = area("dlrm").number("METHOD_SPREAD")


INTERACTIONS = ("dot", "cat", "dcnv2")
LOSSES = ("bce", "mse", "bce_logits")
SPARSE_UPDATES = (SORTED, SCATTERED)
CPU_LOOKUPS = (EMBEDDING_BAG, FBGEMM)
EAGER = "eager"
JOINT_STACK = "nvidia"
TORCHREC_STACK = "torchrec"
HUGECTR_STACK = "hugectr"
STACKS = (EAGER, JOINT_STACK, TORCHREC_STACK, HUGECTR_STACK)
ALIASES = {"now": EAGER}
"""Earlier names of stacks."""
OWN_PROGRAMS = (JOINT_STACK, HUGECTR_STACK)
"""Stacks with a program of their own: on GPUs alone, and their plans are simulated one by one."""
LOADERS = ("memory", "mapped", "none")
_OF_TABLES_ALONE = ("rowwise_adagrad", "partial_rowwise_adam", "lamb", "partial_rowwise_lamb")
SPARSE_OPTIMIZERS = ("sgd", "adagrad", "adam", *_OF_TABLES_ALONE)
_EXCHANGE_DTYPES = ("fp32", "fp16", "bf16", "fp8", "int8")
_PLACED_BY = {JOINT_STACK: "nvidia", HUGECTR_STACK: "hugectr"}
"""How a stack places tables where the file does not say."""


WITHOUT_EFFECT = {
    "recompute": "a DLRM keeps its activations",
    "attention": "a DLRM has no attention",
    "dropout": "a DLRM has no dropout",
}
"""Fields of ``training`` that a DLRM has no use for, and why."""


_BETWEEN_RANKS = (
    ("bucket_mb", 25, "gradients are not exchanged"),
    ("exchange_dtype", "fp32", "pooled rows are not exchanged"),
    ("input_dist", False, "indices are not exchanged"),
)
"""Fields of ``[parallel]`` about exchanges: their default, and why they do nothing on one rank."""

_SET_BY_STACK: Mapping[str, tuple[tuple[str, str, tuple[object, ...], str], ...]] = {
    JOINT_STACK: (
        ("parallel", "exchange_dtype", ("fp32",), "vectors travel in the type of the products"),
        ("parallel", "input_dist", (False,), "each rank reads the indices of its own tables"),
        ("parallel", "fused_lookup", (True,), "the tables of a rank are one matrix"),
        ("parallel", "bucket_mb", (25,), "gradients are reduced in one buffer"),
        ("training", "sparse_update", (SORTED,), "every lookup's gradient is added by itself"),
    ),
    HUGECTR_STACK: (
        ("parallel", "exchange_dtype", ("fp16", "bf16"), "vectors travel in half precision"),
        ("parallel", "input_dist", (False,), "the next batch is distributed during the step"),
        ("parallel", "fused_lookup", (True,), "one kernel looks up all tables of a rank"),
        ("parallel", "bucket_mb", (25,), "gradients are reduced in one buffer"),
        ("training", "sparse_update", (SORTED,), "every row is updated once"),
        ("training", "cuda_graph", (True,), "the step is one CUDA graph"),
        ("training", "master_weights", (True,), "half-precision weights have fp32 copies"),
    ),
}
"""What a stack does in one way: section, field, the values that say so, and what it does."""

EXCHANGE_FIELDS = tuple(key for key, _, _ in _BETWEEN_RANKS)


@dataclass(frozen=True)
class DlrmConfig:
    """Model, batch, training and layout of one DLRM. ``batch`` is global.

    ``plan`` says which table lives on which rank. ``input_dist``: the step begins with an
    all_to_all of indices (each rank reads its own samples); otherwise each rank reads the
    indices of its own tables for the whole batch. ``fused_lookup``: all local tables in
    one kernel (FBGEMM) instead of one ``embedding_bag`` per table; ``cpu_lookup``: the operator
    of a CPU. ``sparse_update``: the lookup's backward sorts the indices and updates each distinct
    row once (FBGEMM), or every lookup updates its row as it comes (scattered: the table-batched
    kernels of 2020). ``stack``: what eager PyTorch launches and waits for (``eager``), or
    NVIDIA's example with its fused kernels (`stepsight.workload.dlrm.joint`), TorchRec's with its pipeline
    (`stepsight.workload.dlrm.torchrec`), or HugeCTR (`stepsight.workload.dlrm.hugectr`).
    ``exchange_dtype``: pooled rows and their gradients travel in that type (TorchRec's quantised
    communication). ``loader``: what TorchRec's loader does with a batch in the training process: joins and
    pins arrays that lie in memory, or of a mapped file, whose indices it first reduces modulo the tables'
    rows (``--mmap_mode``); or nothing, where batches come from elsewhere.
    """

    name: str
    batch: int
    features: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    interaction: str
    tables: tuple[Table, ...]
    training: Training
    ranks: int
    plan: Plan
    bucket_mb: float = 25.0
    cross_layers: int = 3
    cross_rank: int = 512
    sparse_optimizer: str = "sgd"
    sparse_update: str = SORTED
    input_dist: bool = False
    fused_lookup: bool = True
    cpu_lookup: str = EMBEDDING_BAG
    stack: str = EAGER
    exchange_dtype: str = "fp32"
    loader: str = "memory"
    source: str = field(default="", compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def table_of_name(self) -> Mapping[str, Table]:
        return {table.name: table for table in self.tables}

    @property
    def batch_per_rank(self) -> int:
        return self.batch // self.ranks

    @property
    def exchange_bytes(self) -> int:
        """Of one pooled value on its way."""
        return dtype_bytes(self.exchange_dtype)


def read_dlrm(document: Mapping[str, Any], source: str) -> DlrmConfig:
    """The file's fields, checked."""
    fields = Fields(document, source)
    fields.choice("kind", ("dlrm",))
    dense = fields.section("dense")
    parallel = fields.section("parallel")
    training_fields = fields.section("training")
    sparse = str(training_fields.anything("sparse_optimizer", ""))
    sparse_update = training_fields.choice("sparse_update", SPARSE_UPDATES, "sorted")
    given = training_fields.choice("stack", (*STACKS, *ALIASES), EAGER)
    stack = ALIASES.get(given, given)
    if training_fields.has("loader") and stack != TORCHREC_STACK:
        raise training_fields.fail("loader", f"has no effect on stack = {stack!r}", "leave it out")
    loader = training_fields.choice("loader", LOADERS, "memory")
    if (named := training_fields.values.get("optimizer")) in _OF_TABLES_ALONE:
        problem = f"{named} updates tables, not the dense part"
        raise training_fields.fail("optimizer", problem, f'set sparse_optimizer = "{named}"')
    training = Training.read(training_fields, LOSSES, WITHOUT_EFFECT)
    tables = _all_tables(fields, source)
    _name_apart(tables, source)
    batch = fields.integer("batch")
    ranks = parallel.integer("ranks", _planned_ranks(parallel, source, batch))
    if batch % ranks:
        raise fields.fail(
            "batch", f"{batch} is not a multiple of ranks = {ranks}", f"use a multiple of {ranks}"
        )
    interaction = dense.choice("interaction", INTERACTIONS, "dot")
    for key in ("cross_layers", "cross_rank"):
        if dense.has(key) and interaction != "dcnv2":
            raise dense.fail(key, f"has no effect on interaction = {interaction!r}", "leave it out")
    _refuse_other_ways(stack, {"parallel": parallel, "training": training_fields})
    if ranks == 1:
        _refuse_alone(parallel)
    plan = _plan(parallel, tables, ranks, source, _PLACED_BY.get(stack, "size_lookup_greedy"))
    config = DlrmConfig(
        name=fields.text("name", Path(source).stem),
        batch=batch,
        features=dense.integer("features"),
        bottom=dense.integers("bottom"),
        top=dense.integers("top"),
        interaction=interaction,
        tables=plan.in_tiers(tables),
        training=training,
        ranks=ranks,
        plan=plan,
        bucket_mb=parallel.number("bucket_mb", 25.0, least=0.001),
        cross_layers=dense.integer("cross_layers", 3),
        cross_rank=dense.integer("cross_rank", 512),
        sparse_optimizer=_sparse_optimizer(sparse, training, source),
        sparse_update=sparse_update,
        input_dist=parallel.flag("input_dist", stack == TORCHREC_STACK and ranks > 1),
        fused_lookup=parallel.flag("fused_lookup", True),
        cpu_lookup=parallel.choice("cpu_lookup", CPU_LOOKUPS, EMBEDDING_BAG),
        stack=stack,
        notes=(f'training.stack = "{given}" is the earlier name of "{stack}"',) if given in ALIASES else (),
        exchange_dtype=parallel.choice("exchange_dtype", _EXCHANGE_DTYPES, "fp32"),
        loader=loader,
        source=source,
    )
    sections = {"training": training_fields, "parallel": parallel, "dense": dense, "": fields}
    for section in sections.values():
        section.finish(sections)
    if not tables and config.interaction != "cat":
        raise InputError(source, "a DLRM without tables has nothing to interact", "add [[tables]]")
    _check_stack(config, source)
    return config


def _refuse_alone(parallel: Fields) -> None:
    """Fields that only several ranks have a use for; one that repeats its default may stay."""
    for key, default, why in _BETWEEN_RANKS:
        if parallel.has(key) and parallel.values[key] != default:
            raise parallel.fail(key, f"has no effect on one rank: {why}", "leave it out, or use more ranks")


def _refuse_other_ways(stack: str, sections: Mapping[str, Fields]) -> None:
    """Fields that the stack does not heed; one that says what it does may stay."""
    for section, key, values, why in _SET_BY_STACK.get(stack, ()):
        fields = sections[section]
        if fields.has(key) and fields.values[key] not in values:
            raise fields.fail(key, f"has no effect on stack = {stack!r}: {why}", "leave it out")


def _check_stack(config: DlrmConfig, source: str) -> None:
    """What NVIDIA's example and HugeCTR are known for; a CUDA graph holds nothing that the host waits for."""
    t, several, dot = config.training, config.ranks > 1, config.interaction == "dot"
    joint, torchrec, hugectr = (config.stack == name for name in (JOINT_STACK, TORCHREC_STACK, HUGECTR_STACK))
    uncaptured = "such a step cannot be captured: "
    sizes = "the host waits for the sizes of the indices that it exchanges"
    known = (
        f"{JOINT_STACK} is known for dot, sgd, bce_logits, one dim and whole fp32 tables on the device with "
        "one lookup per sample; "
    )
    eager, otherwise = 'change that, or set stack = "eager"', f"stack = {HUGECTR_STACK!r} is known otherwise"
    on_device = f"{HUGECTR_STACK} is known for unweighted tables on the device"
    sgd = t.optimizer == config.sparse_optimizer == "sgd"
    device = all(table.placement == DEVICE for table in config.tables)
    plain = not any(table.weighted for table in config.tables)
    single = plain and all((t.pooling, t.features, t.dtype) == (1, 1, "fp32") for t in config.tables)
    one_dim = all(table.dim == config.bottom[-1] for table in config.tables)
    whole = all(shard.kind == "table_wise" for shard in config.plan.shards)
    for field_, wrong, problem, fix in (
        ("cuda_graph", t.cuda_graph and (config.input_dist or (torchrec and several)), uncaptured + sizes,
         "leave it out"),
        ("cuda_graph", t.cuda_graph and torchrec and dot,
         f"{uncaptured}the interaction's indices come from the host", "leave it out"),
        ("stack", joint and not dot, f"{known}interaction differs", eager),
        ("stack", joint and not sgd, f"{known}optimizer differs", eager),
        ("stack", joint and t.loss != "bce_logits", f"{known}loss differs", eager),
        ("stack", joint and not one_dim, f"{known}dims differs", eager),
        ("stack", joint and not whole, f"{known}sharding differs", eager),
        ("stack", joint and not single, f"{known}pooling, features, weighted or dtype differs", eager),
        ("stack", joint and not device, f"{known}placement differs", eager),
        ("stack", hugectr and not (plain and device), on_device, eager),
        ("precision", hugectr and not t.half, otherwise, 'set precision = "fp16"'),
        ("optimizer", hugectr and t.optimizer == "none", otherwise, 'set optimizer = "adagrad"'),
        ("loss", hugectr and t.loss != "bce_logits", otherwise, 'set loss = "bce_logits"'),
    ):  # fmt: skip
        if wrong:
            raise InputError(f"{source}: [training]: {field_}", problem, fix)


def _sparse_optimizer(given: str, training: Training, source: str) -> str:
    if given:
        if given not in SPARSE_OPTIMIZERS:
            raise InputError(f"{source}: [training]: sparse_optimizer", f"unknown {given!r}",
                             nearest(given, SPARSE_OPTIMIZERS))  # fmt: skip
        return given
    return {"adamw": "adam", "none": "none"}.get(training.optimizer, training.optimizer)


def _all_tables(fields: Fields, source: str) -> tuple[Table, ...]:
    """Those that the file lists, or those of another file: ``tables = { file = "tables.csv" }``."""
    if isinstance(fields.values.get("tables"), Mapping):
        named = fields.section("tables")
        file = named.text("file", "")
        named.finish()
        if not file:
            raise named.fail("file", "is missing", 'write tables = { file = "tables.csv" }, or [[tables]]')
        return read_tables(_next_to(source, file))
    return tuple(table for entry in fields.sections("tables") for table in _tables(entry, source))


def _tables(entry: Fields, source: str) -> list[Table]:
    count = entry.integer("count", 1)
    rows, dim = entry.integer("rows"), entry.integer("dim")
    indices = IndexDistribution.parse(entry.anything("indices", "uniform"), entry.at("indices"))
    if indices.kind == "file":
        indices = replace(indices, path=str(_next_to(source, indices.path)))
    pooling, bag_spread = _bags(entry, indices)
    dtype = entry.choice("dtype", ROW_DTYPES, "fp32")
    name = entry.text("name", "")
    weighted, features = entry.flag("weighted", False), entry.integer("features", 1)
    placement = entry.choice("placement", TABLE_PLACEMENTS, DEVICE)
    if placement not in CACHED and entry.has("cache_share"):
        raise entry.fail("cache_share", f"has no effect on a table in {placement} memory", "leave it out")
    cached = entry.number("cache_share", CACHE_SHARE, least=1e-6, most=1.0)
    entry.finish()
    stem = name or f"t{entry.where.rpartition('[')[2].rstrip(']')}"
    return [
        Table(
            stem if count == 1 else f"{stem}_{i}",
            rows,
            dim,
            pooling,
            indices,
            dtype,
            features,
            weighted,
            placement,
            cache_share=cached,
            bag_spread=bag_spread,
        )
        for i in range(count)
    ]


def _bags(entry: Fields, indices: IndexDistribution) -> tuple[float, float]:
    """Mean lookups of a bag and their spread: a number, ``{ mean, spread }``, or those of the index file."""
    value = entry.anything("pooling", 1.0)
    if value == "file":
        if indices.kind != "file":
            raise entry.fail(
                "pooling", "there is no index file to take it from", 'set indices = { file = "…" }'
            )
        stream = open_index_file(indices.path).table(indices.table)
        return stream.pooling, spread_of(stream.lengths) if len(stream.lengths) else 0.0
    if isinstance(value, Mapping):
        bags = Fields(value, entry.at("pooling"))
        mean, spread = bags.number("mean"), bags.number("spread", 0.0, most=MOST_BAG_SPREAD)
        bags.finish()
        return mean, spread
    return entry.number("pooling", 1.0), 0.0


def _name_apart(tables: tuple[Table, ...], source: str) -> None:
    seen: set[str] = set()
    for table in tables:
        if table.name in seen:
            raise InputError(
                f"{source}: tables", f"two tables are named {table.name!r}", "give each its own name"
            )
        seen.add(table.name)


def _planned_ranks(parallel: Fields, source: str, batch: int) -> int:
    """As many as the plan was made for, where it is given; else one."""
    value = parallel.anything("sharding", "")
    if isinstance(value, Mapping) and set(value) == {"file"}:
        return planned_ranks(_next_to(source, str(value["file"])), batch)
    if isinstance(value, list) and value and all(isinstance(r, int) and r >= 0 for r in value):
        return int(max(value)) + 1
    return 1


def _next_to(source: str, file: str) -> Path:
    """A file as it is named, or in the workload's folder."""
    path = Path(file)
    return path if path.is_absolute() or path.exists() else Path(source).parent / path


def _plan(parallel: Fields, tables: tuple[Table, ...], ranks: int, source: str, usual: str) -> Plan:
    """A sharder's name, ``{ file = … }``, or a list with the rank of each table."""
    value = parallel.anything("sharding", usual)
    where = parallel.at("sharding")
    if not tables:
        return Plan(ranks, ())
    if isinstance(value, str):
        if value.endswith(".json"):
            raise InputError(where, f"names a file, {value}", f'write {{ file = "{value}" }}')
        if value not in PLACEMENTS:
            raise InputError(where, f"unknown sharder {value!r}", nearest(value, list(PLACEMENTS)))
        return PLACEMENTS[value](tables, ranks)
    if isinstance(value, list):
        if len(value) != len(tables) or not all(isinstance(r, int) for r in value):
            raise InputError(
                where, f"must give a rank for each of the {len(tables)} tables", "e.g. [0, 1, 0, 1]"
            )
        plan = Plan.table_wise(tables, value, ranks, "given")
    elif isinstance(value, Mapping) and set(value) == {"file"}:
        where = str(value["file"])
        plan = read_plan(_next_to(source, where), tables, ranks)
    else:
        raise InputError(
            where, f"is {value!r}", 'write a sharder\'s name, { file = "plan.json" } or a list of ranks'
        )
    if plan.ranks != ranks:
        raise InputError(
            where, f"the plan is for {counted(plan.ranks, 'rank')}, the job has {ranks}",
            f"set parallel.ranks={plan.ranks}, or make a plan for {ranks} (`stepsight shard`)",
        )  # fmt: skip
    plan.check(tables, where)
    return plan
