"""The cost of a plan is the whole simulated step.

A DLRM's program is built and priced once (`stepsight.simulate.template`). A plan changes only a few
of its launches: the copies of the indices, the lookups, and the exchanges of pooled embeddings and
gradients. Those are filled in for thousands of plans at once, and one walk prices them all: overlap
with the dense part, stragglers and exposed communication included. A search ranks plans by that; what
it reports of them is `simulated_us`, each plan's own program in full, as ``predict`` prints it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.kernels.embedding.model import EmbeddingModel
from stepsight.platform.load import Platform
from stepsight.program.job import Kernel
from stepsight.sharding.loads import Loads, LookupModel, PartCosts, SeparateLookups, scaled_to
from stepsight.simulate.contention import side_by_side
from stepsight.simulate.template import END, Slot, StepTemplate
from stepsight.simulate.timeline import simulate
from stepsight.tables.plan import COLUMN_WISE, Plan, Shard
from stepsight.tables.sharders import SHARDERS
from stepsight.tables.table import Table
from stepsight.workload.dlrm.build import DlrmWorkload, build
from stepsight.workload.dlrm.embeddings import INDEX_BYTES, PlanOps, rank_lookup

POOLED_BYTES = 4
"""Pooled embeddings and their gradients travel as fp32."""
_NO_COLUMNS = 1e-6
"""Fewer columns than this are what subtracting leaves of none."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Prices the exchanges of any number of plans from the columns that their ranks hold."""

    platform: Platform
    batch: int
    ranks: int
    ranks_per_node: int
    value_bytes: int = POOLED_BYTES

    def times(self, loads: Loads) -> tuple[FloatArray, FloatArray]:
        """When each rank is done with the exchange of pooled embeddings, and of gradients."""
        if self.ranks == 1:
            return np.zeros_like(loads.columns), np.zeros_like(loads.columns)
        summing = loads.node_columns.any()
        columns = loads.columns
        if summing:  # what is summed inside the nodes does not take part in the exchange among all
            columns = np.maximum(columns - loads.node_columns / self.ranks_per_node, 0.0)
        forward, backward = self._among_all(columns)
        if summing:
            some = (columns > _NO_COLUMNS).any(axis=-1, keepdims=True)
            summed = self._summed(loads.node_columns)
            forward, backward = forward * some + summed[0], backward * some + summed[1]
        return forward, backward

    def _among_all(self, columns: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The exchange of every rank's columns with every other rank, both ways."""
        n = self.ranks
        models = self.platform.collectives
        per_column = self.value_bytes * self.batch / n
        sent, received = _leaving(columns, per_column, self.ranks_per_node)
        forward = models.alltoallv_times(sent, received, range(n))
        backward = models.alltoallv_times(received, sent, range(n))
        if self.ranks_per_node < n:
            inside = self._inside(columns, per_column)
            forward, backward = np.maximum(forward, inside[0]), np.maximum(backward, inside[1])
        return forward, backward

    def _summed(self, node_columns: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Row parts summed inside their node, then exchanged among the ranks with the same place in
        their nodes; and the way back (`stepsight.workload.dlrm.exchange`)."""
        models, per_node = self.platform.collectives, self.ranks_per_node
        held = node_columns.reshape(*node_columns.shape[:-1], -1, per_node).max(axis=-1)
        some = held.any(axis=-1, keepdims=True)
        buffers = (self.value_bytes * self.batch * held).ravel()
        sums, gathers = (
            models.estimate(kind, buffers, range(per_node)).time_us.reshape(held.shape)
            for kind in ("reduce_scatter", "all_gather")
        )
        per_column, nodes = self.value_bytes * self.batch / self.ranks, held.shape[-1]
        sent = per_column * (nodes - 1) * held
        received = per_column * (held.sum(axis=-1, keepdims=True) - held)
        peers = range(0, self.ranks, per_node)
        there = sums + models.alltoallv_times(sent, received, peers)
        back = gathers + models.alltoallv_times(received, sent, peers)
        return np.repeat(there * some, per_node, axis=-1), np.repeat(back * some, per_node, axis=-1)

    def _inside(self, columns: FloatArray, per_column: float) -> tuple[FloatArray, FloatArray]:
        """The part of both exchanges that stays inside the nodes, on the nodes' own links."""
        per_node = self.ranks_per_node
        by_node = columns.reshape(*columns.shape[:-1], -1, per_node)
        sent = per_column * (per_node - 1) * by_node
        received = per_column * (by_node.sum(axis=-1, keepdims=True) - by_node)
        if per_node == 1:
            return np.zeros_like(columns), np.zeros_like(columns)
        models, node = self.platform.collectives, range(per_node)
        there = models.alltoallv_times(sent, received, node).reshape(columns.shape)
        return there, models.alltoallv_times(received, sent, node).reshape(columns.shape)

    def replicated(self, gradient_bytes: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What data-parallel tables add: their gradients' all_reduce, and a dense update."""
        models, gpu = self.platform.collectives, self.platform.spec.gpu
        reduce_us = models.estimate("all_reduce", gradient_bytes, range(self.ranks)).time_us
        # A dense update reads gradient and weight and writes the weight.
        update_us = 3 * gradient_bytes / (gpu.memory_gbps * 1e3)
        return np.where(gradient_bytes > 0, reduce_us, 0.0), update_us


def _leaving(columns: FloatArray, per_column: float, per_node: int) -> tuple[FloatArray, FloatArray]:
    """Bytes that each rank sends and receives; over several nodes those that leave its node, scaled
    to what a balanced exchange with the same traffic between nodes would send in all."""
    n = columns.shape[-1]
    if per_node >= n:
        total = columns.sum(axis=-1, keepdims=True)
        return per_column * (n - 1) * columns, per_column * (total - columns)
    whole = (n - 1) / (n - per_node)
    own_node = columns.reshape(*columns.shape[:-1], -1, per_node).sum(axis=-1)
    elsewhere = columns.sum(axis=-1, keepdims=True) - np.repeat(own_node, per_node, axis=-1)
    return whole * per_column * (n - per_node) * columns, whole * per_column * elsewhere


C = area("sharding")
CUT_WIDTH = C.whole("CUT_WIDTH")
MOST_CUT = C.whole("MOST_CUT")

COPY_INDICES, COPY_OFFSETS, FORWARD, JOIN, BACKWARD, EXCHANGE, EXCHANGE_BACK = (
    "copy_indices", "copy_offsets", "forward", "join", "backward", "exchange", "exchange_back",
)  # fmt: skip
"""The slots of a DLRM's step that a plan fills."""


class PlanPricer:
    """Prices plans of one DLRM on one platform.

    ``days`` are the workload's tables with the index streams of several days; by default
    there is one day, the workload's own.
    """

    def __init__(
        self, workload: DlrmWorkload, platform: Platform, days: Sequence[Sequence[Table]] = ()
    ) -> None:
        config = workload.config
        self.workload, self.platform = workload, platform
        self.ranks, self.batch = config.ranks, config.batch
        self.device = "cpu" if platform.spec.host.synchronous else "cuda"
        template = workload.with_plan(SHARDERS["size_lookup_greedy"](config.tables, config.ranks))
        job, ops = build(template.config, self.device)
        self._job, self._step = job, StepTemplate(job, platform, _slots(ops))
        self._copy = _Curve(platform, "copy_h2d", ("bytes",), "int64")
        self._concat = _Curve(platform, "concat", ("read_bytes", "write_bytes"), "fp32")
        self.costs = PartCosts(
            days or [config.tables],
            config.batch,
            config.ranks,
            self._lookup_model(template, ops),
            optimizer=config.sparse_optimizer,
            ranks_per_node=platform.spec.gpus_per_node,
        )
        self._exchange = Exchange(
            platform, config.batch, config.ranks, self.costs.ranks_per_node, config.exchange_bytes
        )
        self._joining_us = (0.0, 0.0)
        if not days:  # the simulated program looks its own indices up
            self._joining_us = self._joining(template)

    def step_us(self, plans: Sequence[Plan]) -> FloatArray:
        """Step times of plans, (plans, days)."""
        return self.times(self.costs.loads(plans))

    def times(self, loads: Loads) -> FloatArray:
        """Step times of loads, (plans, days)."""
        plans, days, ranks = loads.columns.shape
        flat = loads.each(lambda us: us.reshape(plans * days, ranks))
        most = self._step.batch
        batches = [slice(at, at + most) for at in range(0, plans * days, most)]
        pieces = [self._walk(flat.each(itemgetter(batch))) for batch in batches]
        return np.concatenate(pieces).reshape(plans, days)

    def exchange_us_per_column(self, loads: Loads) -> float:
        """What one more pooled column on each rank adds to the exchange of these loads, on average."""
        more = replace(loads, columns=loads.columns * 1.1)
        added = self._exchange.times(more)[0] - self._exchange.times(loads)[0]
        columns = (more.columns - loads.columns).sum()
        return float(added.sum() / columns) if columns > 0 else 0.0

    def exchange_us(self, loads: Loads) -> FloatArray:
        """Both exchanges of each rank, in the shape of the loads."""
        there, back = self._exchange.times(loads)
        return there + back

    def copy_us(self, loads: Loads) -> FloatArray:
        """Copies of each rank's indices to its device, in the shape of the loads."""
        return self._copy.time_us(INDEX_BYTES * loads.lookups)

    def simulated_us(self, plan: Plan) -> float:
        """The step time as ``predict`` would print it: the plan's own program, simulated in full."""
        return float(self.simulated_days_us(plan)[0])

    def simulated_days_us(self, plan: Plan) -> FloatArray:
        """The same with the index streams of every day."""
        config = self.workload.with_plan(plan).config
        days = [DlrmWorkload(replace(config, tables=tables)) for tables in self.costs.days]
        return np.array([simulate(day.job(self.device), self.platform).step_us for day in days])

    def _lookup_model(self, template: DlrmWorkload, ops: PlanOps) -> LookupModel:
        config = template.config
        fused = self._kernel_of(0, ops.lookup_forward).lookup
        if fused is None or not fused.fused:
            return SeparateLookups(self.platform.kernels.estimate)
        measured = self.platform.kernels.measured_lookups(fused.operator)
        if measured is not None:
            return measured
        lookups = [rank_lookup(config, config.plan, rank, fused=True) for rank in range(config.ranks)]
        together = -(-len(config.tables) // config.ranks)
        model = EmbeddingModel.for_gpu(self.platform.spec.gpu)
        return scaled_to(model, self.platform.kernels.estimate, lookups, together)

    def _kernel_of(self, rank: int, op: int) -> Kernel:
        return self._job.programs[self._job.program_of_rank[rank]].ops[op].kernels[0]

    def _walk(self, loads: Loads) -> FloatArray:
        count = len(loads)
        contention, per_node = self.platform.spec.contention, self.platform.spec.gpus_per_node
        forward = side_by_side(loads.forward_us, contention.lookups_forward, per_node)
        backward = side_by_side(loads.backward_us, contention.lookups_backward, per_node)
        exchange, exchange_back = self._exchange.times(loads)
        replicated = np.zeros(count)
        if loads.gradient_bytes.any():  # the compute stream waits for their reduction
            replicated = np.sum(self._exchange.replicated(loads.gradient_bytes[:, 0]), axis=0)
        times = {
            COPY_INDICES: self.copy_us(loads),
            COPY_OFFSETS: self._copy.time_us(INDEX_BYTES * loads.bags),
            FORWARD: forward,
            BACKWARD: backward,
            EXCHANGE: exchange,
            EXCHANGE_BACK: exchange_back,
        }
        if self._step.has(JOIN):
            times[JOIN] = self._concat.time_us(POOLED_BYTES * self.batch * loads.columns)
        step = self._step.step_us(times, {END: replicated})
        cuts = loads.cuts.sum(axis=-1)
        first, each = self._joining_us
        joining = np.where(cuts > 0, first + each * cuts, 0.0)
        return step + joining

    def _joining(self, template: DlrmWorkload) -> tuple[float, float]:
        """What the step takes longer once tables are cut, and for each part: their columns must be
        put together again, which the template's program does not do. Seen on two cut plans."""
        wide = [t for t in template.tables if t.dim >= 2 * CUT_WIDTH]
        if self.ranks == 1 or not wide:
            return 0.0, 0.0
        points = []
        for count in sorted({1, min(len(wide), MOST_CUT)}):
            plan = _halved(template.plan, {t.name for t in wide[:count]})
            points.append((2.0 * count, self.simulated_us(plan) - float(self.step_us([plan]).mean())))
        each = (points[-1][1] - points[0][1]) / max(points[-1][0] - points[0][0], 1.0)
        each = max(each, 0.0)
        return max(points[0][1] - each * points[0][0], 0.0), each


def _slots(ops: PlanOps) -> dict[str, Slot]:
    """The launches of a DLRM's step that follow the plan."""
    return {
        COPY_INDICES: Slot(ops.copy_indices),
        COPY_OFFSETS: Slot(ops.copy_offsets),
        FORWARD: Slot(ops.lookup_forward, 0),
        JOIN: Slot(ops.lookup_forward, 1),
        BACKWARD: Slot(ops.lookup_backward),
        EXCHANGE: Slot(ops.alltoall_forward),
        EXCHANGE_BACK: Slot(ops.alltoall_backward),
    }


def _halved(plan: Plan, tables: set[str]) -> Plan:
    """The plan with these tables cut into two column parts, which stay where they were."""
    shards: list[Shard] = []
    for s in plan.shards:
        if s.table not in tables:
            shards.append(s)
            continue
        middle = s.width // 2
        shards += [replace(s, columns=(0, middle), kind=COLUMN_WISE),
                   replace(s, columns=(middle, s.width), kind=COLUMN_WISE)]  # fmt: skip
    return replace(plan, shards=tuple(shards))


class _Curve:
    """A kernel's time by its bytes, asked of the platform once for a ladder of sizes."""

    def __init__(self, platform: Platform, family: str, dims: Sequence[str], dtype: str) -> None:
        self.sizes = np.concatenate([[1.0], np.geomspace(256.0, 2.0**38, 145)])
        kernels = [Kernel(family, tuple((d, float(s)) for d in dims), dtype) for s in self.sizes]
        self.times = platform.kernels.estimate(kernels).time_us

    def time_us(self, size: FloatArray) -> FloatArray:
        return np.interp(size, self.sizes, self.times)
