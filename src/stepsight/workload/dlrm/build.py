"""A hybrid-parallel DLRM step: sharded embeddings, data-parallel dense part.

The order is that of PyTorch's own DLRM: copies in, lookup, start of the all_to_all,
bottom MLP under it, wait, interaction, top MLP, loss; then the backward pass as autograd
orders it, with bucketed all_reduce and the all_to_all of gradients, and the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from stepsight.errors import InputError
from stepsight.program.job import Job, Op, RankProgram
from stepsight.program.setup import Setup
from stepsight.tables.lookup import FBGEMM
from stepsight.tables.plan import Plan
from stepsight.tables.table import Table
from stepsight.terminal import counted
from stepsight.workload.dlrm import embeddings, exchange, torchrec, torchrec_cpu
from stepsight.workload.dlrm.config import JOINT_STACK, OWN_PROGRAMS, TORCHREC_STACK, DlrmConfig
from stepsight.workload.dlrm.embeddings import PlanOps
from stepsight.workload.dlrm.exchange import GATHER, SUM, NodeTables, without_node_tables
from stepsight.workload.dlrm.hugectr import hugectr_job
from stepsight.workload.dlrm.interactions import interact, interaction_width
from stepsight.workload.dlrm.joint import joint_job
from stepsight.workload.memory import MemoryReport, peak_memory
from stepsight.workload.operators.matmuls import linear
from stepsight.workload.operators.norms import pointwise_loss
from stepsight.workload.operators.pointwise import relu, sigmoid
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import cast, cat
from stepsight.workload.step import train_step
from stepsight.workload.training import Described

FBGEMM_WIDTH, FBGEMM_WIDEST = 4, 2048
"""Columns of a row that FBGEMM's GPU kernels take at a time (``D % 4 == 0`` in its checks), and at most
(``max_embedding_dim``)."""


@dataclass(frozen=True, repr=False)
class DlrmWorkload(Described[DlrmConfig]):
    """A DLRM that can be turned into rank programs for any plan."""

    @property
    def tables(self) -> tuple[Table, ...]:
        return self.config.tables

    @property
    def plan(self) -> Plan:
        return self.config.plan

    def setup(self) -> Setup:
        """Batch, precision and how tables and dense part are spread."""
        c = self.config
        sharding = f"{counted(len(c.tables), 'table')}, sharding {c.plan.sharder or 'by a given plan'}"
        details = (sharding,) if c.ranks > 1 else ()
        return Setup(
            samples=c.batch, precision=c.training.precision, parallel=(("data", c.ranks),), details=details
        )

    def with_plan(self, plan: Plan) -> DlrmWorkload:
        """The same model with its tables elsewhere."""
        plan.check(self.config.tables)
        return DlrmWorkload(replace(self.config, plan=plan, tables=plan.in_tiers(self.config.tables)))

    def job(self, device: str = "cuda", *, fused: bool | None = None) -> Job:
        """Every rank's program. ``fused`` overrides the workload's lookup on a GPU."""
        if self.config.stack in OWN_PROGRAMS and device != "cuda":
            problem = f"{self.config.stack} is known on GPUs alone"
            raise InputError(f"{self.name}: stack", problem, 'set stack = "eager" for a CPU')
        if self.config.stack in OWN_PROGRAMS:
            return joint_job(self.config) if self.config.stack == JOINT_STACK else hugectr_job(self.config)
        return build(self._on(device), device, fused)[0]

    def _on(self, device: str) -> DlrmConfig:
        """TorchRec looks up with FBGEMM on a CPU, too."""
        if self.config.stack == TORCHREC_STACK and device != "cuda":
            return replace(self.config, cpu_lookup=FBGEMM)
        return self.config

    def memory(self) -> MemoryReport:
        """What each rank's device must hold at the peak."""
        c = self.config
        dense = peak_memory(recorded_step(c, "cuda", True), c.training, c.ranks)
        held = c.plan.memory_bytes(c.tables, c.sparse_optimizer)
        return MemoryReport(tuple(replace(dense, tables=float(bytes_)) for bytes_ in held))


def _check_widths(config: DlrmConfig) -> None:
    """FBGEMM's kernels on a GPU load rows four values at a time, and are built for rows of up to 2,048."""
    for shard in config.plan.shards:
        if shard.width % FBGEMM_WIDTH or shard.width > FBGEMM_WIDEST:
            raise InputError(
                f"{config.source or config.name}: table {shard.table!r}",
                f"has {shard.width} columns on rank {shard.rank}; FBGEMM's fused lookup takes a multiple of "
                f"{FBGEMM_WIDTH}, at most {FBGEMM_WIDEST:,}",
                f"set dim to a multiple of {FBGEMM_WIDTH} up to {FBGEMM_WIDEST}, or "
                "parallel.fused_lookup=false",
            )


def build(config: DlrmConfig, device: str, fused: bool | None = None) -> tuple[Job, PlanOps]:
    """All ranks' programs: one common program in which each rank has its own few ops."""
    if device == "cuda":
        one_kernel = config.fused_lookup if fused is None else fused
        if one_kernel:
            _check_widths(config)
    else:
        one_kernel = config.cpu_lookup == FBGEMM
    tape = recorded_step(config, device, one_kernel)
    marks = PlanOps(
        copy_indices=tape.marks.get("copy_indices"),
        copy_offsets=tape.marks.get("copy_offsets"),
        lookup_forward=tape.marks["lookup_forward"],
        lookup_backward=tape.marks["lookup_backward"],
        alltoall_forward=tape.marks.get("alltoall_forward"),
        alltoall_backward=tape.marks.get("alltoall_backward"),
    )
    nodes = NodeTables.of(config, device)
    plan = without_node_tables(config.plan) if nodes else config.plan
    among_all = exchange.PooledExchange.among_all(config, plan)
    exchanges = (
        (marks.alltoall_forward, among_all.calls(backward=False)),
        (marks.alltoall_backward, among_all.calls(backward=True)),
    )
    programs: dict[tuple[tuple[Op, ...], int], RankProgram] = {}
    order = []
    for rank in range(config.ranks):
        ops = list(tape.ops)
        own = _own_ops(config, rank, one_kernel)
        places = (marks.copy_indices, marks.copy_offsets, marks.lookup_forward, marks.lookup_backward)
        for at, op in zip(places, own, strict=True):
            if at is not None:
                ops[at] = replace(op, name=ops[at].name, overhead_us=ops[at].overhead_us)
        for at, calls in exchanges:
            if at is not None:
                ops[at] = replace(ops[at], calls=(calls[rank],))
        if nodes:
            for at in (tape.marks[SUM], tape.marks[GATHER]):
                ops[at] = nodes.own_op(ops[at], rank)
        key = own, nodes.width(rank) if nodes else 0
        order.append(programs.setdefault(key, RankProgram(tuple(ops), f"rank {rank}")))
    job = Job.of(order)
    return replace(
        job, groups={**job.groups, **exchange.node_groups(config.ranks, nodes.per_node)}
    ) if nodes else job, marks


def _own_ops(config: DlrmConfig, rank: int, fused: bool) -> tuple[Op, ...]:
    lookup = embeddings.rank_lookup(config, config.plan, rank, fused=fused)
    return (*embeddings.index_copies(config, lookup), *embeddings.lookup_ops(config, lookup))


@lru_cache(maxsize=2)
def recorded_step(config: DlrmConfig, device: str, fused: bool) -> Tape:
    """Rank 0's step, as its program and its memory both need it."""
    own = _own_ops(config, 0, fused)

    def model(tape: Tape) -> Callable[[], Tensor]:
        parameters = DenseParameters.register(tape, config)
        return lambda: _forward(tape, config, parameters, own)

    tape = train_step(config.training, device, config.ranks, config.bucket_mb, model)
    if config.stack == TORCHREC_STACK and device == "cuda":
        tape.ops[:] = torchrec.one_by_one(tape.ops, config.training.optimizer, tape.parameters)
    elif config.stack == TORCHREC_STACK:
        tape.ops[:] = torchrec_cpu.as_run(tape, config)
    return tape


def _forward_torchrec_cpu(
    tape: Tape, config: DlrmConfig, parameters: DenseParameters, own: tuple[Op, ...]
) -> Tensor:
    """TorchRec's order on CPU ranks: what the pipeline does for the next batches stands between."""
    dense, target = _inputs(tape, config, own)
    many = config.ranks > 1
    if many:
        torchrec_cpu.start_next(tape, config)
    torchrec_cpu.load(tape, config)
    x = mlp(tape, "bottom", dense, parameters.bottom, last_relu=True)
    if many:
        torchrec_cpu.receive(tape, config)
    looked_up = _looked_up(tape, config, own, "aten::empty", "aten::zeros_like")
    logits = _joined(tape, config, parameters, x, looked_up)
    flat = torchrec_cpu.passed(tape, logits, "aten::squeeze", "SqueezeBackward1")
    torchrec.run_on_host(tape, "aten::to")
    loss = _loss(tape, config, flat, target)
    torchrec.run_on_host(tape, *["aten::detach"] * 3)
    if many:
        torchrec_cpu.send_next(tape, config)
    return torchrec_cpu.passed(tape, loss, "aten::sum", "SumBackward1")


def _forward_torchrec(
    tape: Tape, config: DlrmConfig, parameters: DenseParameters, own: tuple[Op, ...]
) -> Tensor:
    """The same model in TorchRec's order, with its input pipeline (one kernel of lookups, no node sums)."""
    torchrec.load_next(tape, config)
    dense, target = _inputs(tape, config, own)
    torchrec.keep_for_stream(tape)
    x = mlp(tape, "bottom", dense, parameters.bottom, last_relu=True)
    if config.ranks > 1:
        torchrec.before_lookup(tape, config)
    logits = _joined(tape, config, parameters, x, _looked_up(tape, config, own))
    loss = _loss(tape, config, logits, target)
    if config.ranks > 1:
        torchrec.distribute_next(tape, config)
    return loss


def _forward(tape: Tape, config: DlrmConfig, parameters: DenseParameters, own: tuple[Op, ...]) -> Tensor:
    if config.stack == TORCHREC_STACK and tape.device == "cuda":
        return _forward_torchrec(tape, config, parameters, own)
    if config.stack == TORCHREC_STACK:
        return _forward_torchrec_cpu(tape, config, parameters, own)
    dense, target = _inputs(tape, config, own)
    if config.input_dist and config.ranks > 1 and tape.device == "cuda":
        exchange.distribute_inputs(tape, config)
    looked_up = _looked_up(tape, config, own)
    x = mlp(tape, "bottom", dense, parameters.bottom, last_relu=True)
    logits = _joined(tape, config, parameters, x, looked_up)
    return _loss(tape, config, logits, target)


LookedUp = tuple[Tensor, Tensor, Sequence[exchange.UnderWay]]
"""Pooled rows of this rank's tables, those of tables that every rank holds, and the exchanges under way."""


def _looked_up(tape: Tape, config: DlrmConfig, own: tuple[Op, ...], *between: str) -> LookedUp:
    """The lookups and the start of their exchanges; ``between``: host operators after the lookups."""
    nodes = NodeTables.of(config, tape.device)
    plan = without_node_tables(config.plan) if nodes else config.plan
    widths = embeddings.sent_widths(plan, config.tables)[0], nodes.width(0) if nodes else 0
    pooled, partial, own_part = embeddings.lookup(tape, config, (own[2], own[3]), widths)
    torchrec.run_on_host(tape, *between)
    started = exchange.start_exchanges(tape, config, nodes, pooled, partial) if config.ranks > 1 else []
    return pooled, own_part, started


def _joined(
    tape: Tape, config: DlrmConfig, parameters: DenseParameters, x: Tensor, looked_up: LookedUp
) -> Tensor:
    """The top MLP's output, from the dense vector and what was looked up here and elsewhere."""
    pooled, own_part, under_way = looked_up
    parts = [each.finish(tape) for each in under_way] or [pooled]
    parts += [own_part] if own_part.elements else []
    pooled = _as_parameters(tape, cat(tape, parts, 1) if len(parts) > 1 else parts[0])
    with tape.scope("interaction"):
        joined = interact(tape, config, x, pooled, parameters.interaction)
    return mlp(tape, "top", joined, parameters.top, last_relu=False)


def _inputs(tape: Tape, config: DlrmConfig, own: tuple[Op, ...]) -> tuple[Tensor, Tensor]:
    local = config.batch_per_rank
    dense = Tensor.new((local, config.features), persistent=True)
    target = Tensor.new((local, 1), persistent=True)
    if tape.device == "cuda":
        stream = embeddings.copy_stream(config)
        tape.ops.append(embeddings.copy_to_device("dense", dense.elements, 4, stream=stream))
        tape.marks["copy_indices"] = len(tape.ops)
        tape.ops.append(own[0])
        tape.marks["copy_offsets"] = len(tape.ops)
        tape.ops.append(own[1])
        tape.ops.append(embeddings.copy_to_device("target", target.elements, 4, stream=stream))
    return _as_parameters(tape, dense), target


def _as_parameters(tape: Tape, x: Tensor) -> Tensor:
    """In the type of the dense part's parameters: half precision with fp32 master weights casts what comes
    from outside (features, pooled embeddings)."""
    return cast(tape, x, tape.parameter_dtype)


@dataclass(frozen=True, slots=True)
class DenseParameters:
    """The data-parallel parameters in the order the module registers them."""

    bottom: Sequence[tuple[Tensor, Tensor]]
    interaction: Sequence[tuple[Tensor, ...]]
    top: Sequence[tuple[Tensor, Tensor]]

    @classmethod
    def register(cls, tape: Tape, config: DlrmConfig) -> DenseParameters:
        bottom = _linears(tape, "bottom", (config.features, *config.bottom))
        middle: list[tuple[Tensor, ...]] = []
        if config.interaction == "dot":
            middle = [
                (tape.parameter(f"projection.{table.name}", config.bottom[-1], table.dim),)
                for table in odd_tables(config)
            ]
        elif config.interaction == "dcnv2":
            width, rank = config.bottom[-1] + sum(t.output_columns for t in config.tables), config.cross_rank
            for i in range(config.cross_layers):
                v = tape.parameter(f"cross.{i}.v", rank, width)
                w = tape.parameter(f"cross.{i}.w", width, rank)
                middle.append((v, w, tape.parameter(f"cross.{i}.bias", width)))
        return cls(bottom, middle, _linears(tape, "top", (interaction_width(config), *config.top)))


def odd_tables(config: DlrmConfig) -> list[Table]:
    """Tables whose dim is not the common one: a dot interaction projects them."""
    return [table for table in config.tables if table.dim != config.bottom[-1]]


def _linears(tape: Tape, label: str, sizes: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    return [
        (tape.parameter(f"{label}.{i}.weight", n, k), tape.parameter(f"{label}.{i}.bias", n))
        for i, (k, n) in enumerate(pairwise(sizes))
    ]


def mlp(
    tape: Tape, label: str, x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], *, last_relu: bool
) -> Tensor:
    """Linear layers with relu between them."""
    with tape.scope(label):
        for i, (weight, bias) in enumerate(layers):
            x = linear(tape, x, weight, bias)
            if last_relu or i < len(layers) - 1:
                x = relu(tape, x)
    return x


def _loss(tape: Tape, config: DlrmConfig, logits: Tensor, target: Tensor) -> Tensor:
    """bce and mse act on probabilities, as PyTorch's DLRM does; under autocast bce takes the logits."""
    loss = config.training.loss
    with tape.scope("loss"):
        if not tape.autocast:  # whose losses raise their inputs themselves
            logits = cast(tape, logits, target.dtype)
        if loss == "bce_logits" or (loss == "bce" and tape.autocast):
            return pointwise_loss(tape, "binary_cross_entropy_with_logits", logits, target)
        probability = sigmoid(tape, logits)
        return pointwise_loss(
            tape, "mse_loss" if loss == "mse" else "binary_cross_entropy", probability, target
        )
