"""The cost of a plan is the whole simulated step.

A DLRM's program is built and priced once (`stepsight.simulate.template`). A plan changes only a few
of its launches: the copies of the indices, the lookups, and the exchanges of pooled embeddings and
gradients. Those are filled in for thousands of plans at once, and one walk prices them all: overlap
with the dense part, stragglers and exposed communication included. A search ranks plans by that; what
it reports of them is `simulated_us`, each plan's own program in full, as ``predict`` prints it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray, IntArray
from stepsight.kernels.embedding.model import EmbeddingModel
from stepsight.platform.load import Platform
from stepsight.program.job import Kernel
from stepsight.sharding.pricing.exchange import POOLED_BYTES, Exchange
from stepsight.sharding.pricing.loads import Loads, PartCosts, TablePart
from stepsight.sharding.pricing.lookups import LookupModel, SeparateLookups, scaled_to
from stepsight.simulate.shared_memory import side_by_side
from stepsight.simulate.template import END, Slot, StepTemplate
from stepsight.simulate.timeline import simulate
from stepsight.tables.plan import COLUMN_WISE, Plan, Shard
from stepsight.tables.sharders import SHARDERS
from stepsight.tables.table import Table
from stepsight.workload.dlrm.build import DlrmWorkload, build
from stepsight.workload.dlrm.embeddings import INDEX_BYTES, PlanOps, rank_lookup

_CONSTANTS = area("sharding")
CUT_WIDTH = _CONSTANTS.whole("CUT_WIDTH")
MOST_CUT = _CONSTANTS.whole("MOST_CUT")

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
        flat = _reshaped(loads, (plans * days, ranks))
        most = self._step.batch
        pieces = [self._walk(_rows(flat, slice(at, at + most))) for at in range(0, plans * days, most)]
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

    def part_us(self, part: TablePart) -> tuple[float, float, float, float]:
        """One part alone on a rank: forward lookup, its exchange, backward, its exchange (mean over days)."""
        row = self.costs.matrix_row(part)
        sums = np.zeros((1, len(row), self.ranks, row.shape[-1]))
        sums[0, :, 0] = row
        loads = self.costs.times(sums)
        exchange, exchange_back = self._exchange.times(loads)
        return (
            float(loads.forward_us[0, :, 0].mean()),
            float(exchange[0, :, 0].mean()),
            float(loads.backward_us[0, :, 0].mean()),
            float(exchange_back[0, :, 0].mean()),
        )

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


def _reshaped(loads: Loads, shape: tuple[int, ...]) -> Loads:
    """The same loads in another shape."""
    return Loads(*(getattr(loads, name).reshape(shape) for name in Loads.__slots__))


def _rows(loads: Loads, chosen: slice | IntArray) -> Loads:
    return Loads(*(getattr(loads, name)[chosen] for name in Loads.__slots__))
