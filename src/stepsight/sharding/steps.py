"""The cost of a plan is the whole simulated step.

A DLRM's program is built and priced once. A plan changes only a few of its launches: the
copies of the indices, the lookups, and the exchanges of pooled embeddings and gradients.
Those are filled in for thousands of plans at once, and one walk prices them all: overlap
with the dense part, stragglers and exposed communication included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepsight.estimate import FloatArray, IntArray
from stepsight.kernels.embedding.model import EmbeddingModel
from stepsight.platform.load import Platform
from stepsight.sharding.condense import condense
from stepsight.sharding.loads import Loads, Part, PartCosts
from stepsight.sharding.lookups import LookupModel, SeparateLookups, scaled_to
from stepsight.sharding.plan import Plan
from stepsight.sharding.sharders import SHARDERS
from stepsight.sharding.tables import Table
from stepsight.simulate.engine import Priced
from stepsight.simulate.price import PricedJob, PricedLane, price
from stepsight.simulate.tape import Meeting
from stepsight.simulate.timeline import run, simulate, step_times
from stepsight.workload.dlrm import DlrmWorkload, build
from stepsight.workload.embeddings import INDEX_BYTES, PlanOps, rank_lookup
from stepsight.workload.program import Kernel

BATCHED_CELLS = 4_000_000
"""Launches × configurations × ranks walked at once at most: keeps the walk inside the caches."""
POOLED_BYTES = 4
"""Pooled embeddings and their gradients travel as fp32."""


@dataclass(frozen=True, slots=True)
class _Lane:
    """A condensed lane and where in it the launches of the plan's ops stand."""

    priced: PricedLane
    copies: tuple[int, int] | None
    forward: int
    join: int | None
    backward: int | None
    exchange: int | None
    exchange_back: int | None
    reduce: int | None
    update: int
    base_us: FloatArray
    slowed_us: FloatArray

    def slowed(self, launch: int, times: FloatArray) -> FloatArray:
        """A launch's times slowed by what ran beside it in the template.

        At most by as many µs (the overlap is that of the dense part, not longer for a longer
        launch), and at most by the same ratio (a shorter one overlaps less).
        """
        base, extra = self.base_us[launch], self.slowed_us[launch]
        return np.asarray(times + np.minimum(extra, times * (extra / base if base > 0 else 0.0)))


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
        priced = price(job, platform)
        self._job = job
        self._lanes = [self._lane(lane, priced, ops, times) for lane, times in self._settled(priced)]
        self._priced = PricedJob(job, tuple(lane.priced for lane in self._lanes), {})
        self._launches = sum(lane.priced.lane.tape.launches for lane in self._lanes)
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

    def step_us(self, plans: Sequence[Plan]) -> FloatArray:
        """Step times of plans, (plans, days)."""
        return self.times(self.costs.loads(plans))

    def times(self, loads: Loads) -> FloatArray:
        """Step times of loads, (plans, days)."""
        plans, days, ranks = loads.columns.shape
        flat = _reshaped(loads, (plans * days, ranks))
        most = max(1, BATCHED_CELLS // (self._launches * ranks))
        pieces = [self._walk(_rows(flat, slice(at, at + most))) for at in range(0, plans * days, most)]
        return np.concatenate(pieces).reshape(plans, days)

    def exchange_us_per_column(self, loads: Loads) -> float:
        """What one more pooled column on each rank adds to the exchange of these loads, on average."""
        more = replace(loads, columns=loads.columns * 1.1)
        added = self._exchanges(more)[0] - self._exchanges(loads)[0]
        columns = (more.columns - loads.columns).sum()
        return float(added.sum() / columns) if columns > 0 else 0.0

    def exchange_us(self, loads: Loads) -> FloatArray:
        """Both exchanges of each rank, in the shape of the loads."""
        there, back = self._exchanges(loads)
        return there + back

    def part_us(self, part: Part) -> tuple[float, float, float, float]:
        """One part alone on a rank: forward lookup, its exchange, backward, its exchange (mean over days)."""
        row = self.costs.matrix_row(part)
        sums = np.zeros((1, len(row), self.ranks, row.shape[-1]))
        sums[0, :, 0] = row
        loads = self.costs.times(sums)
        exchange, exchange_back = self._exchanges(loads)
        return (
            float(loads.forward_us[0, :, 0].mean()),
            float(exchange[0, :, 0].mean()),
            float(loads.backward_us[0, :, 0].mean()),
            float(exchange_back[0, :, 0].mean()),
        )

    def simulated_us(self, plan: Plan) -> float:
        """The step time as ``predict`` would print it: the plan's own program, simulated in full."""
        job = self.workload.with_plan(plan).job(self.device)
        return simulate(job, self.platform).step_us

    def _settled(self, priced: PricedJob) -> list[tuple[PricedLane, Priced]]:
        """Lanes with the times they have while computing and communicating slow each other."""
        return list(zip(priced.lanes, run(priced, self.platform).stretched, strict=True))

    def _lane(self, lane: PricedLane, priced: PricedJob, ops: PlanOps, times: Priced) -> _Lane:
        tape = lane.lane.tape

        def launches(op: int | None) -> list[int]:
            return [] if op is None else np.flatnonzero(tape.launch_op == op).tolist()

        copies = [*launches(ops.copy_indices), *launches(ops.copy_offsets)]
        forward, backward = launches(ops.lookup_forward), launches(ops.lookup_backward)
        exchange, exchange_back = launches(ops.alltoall_forward), launches(ops.alltoall_backward)
        reduces = [i.launch for i in tape.instructions if isinstance(i, Meeting) and i.kind == "all_reduce"]
        last = int(tape.launches - 1)
        varying = {*copies, *forward, *backward, *exchange, *exchange_back, last}
        spec = self.platform.spec
        short = condense(
            lane.lane, times, varying, synchronous=spec.host.synchronous, gap_us=spec.gpu.kernel_gap_us
        )
        new = short.launch_of

        def only(found: list[int]) -> int | None:
            return new[found[-1]] if found else None

        return _Lane(
            replace(lane, lane=short.lane, times=short.times),
            (new[copies[0]], new[copies[1]]) if len(copies) == 2 else None,
            new[forward[0]],
            new[forward[1]] if len(forward) > 1 else None,
            only(backward),
            only(exchange),
            only(exchange_back),
            only(reduces),
            new[last],
            *_slowing(lane.times.device_us, times.device_us, new),
        )

    def _lookup_model(self, template: DlrmWorkload, ops: PlanOps) -> LookupModel:
        config = template.config
        fused = self._kernel_of(0, ops.lookup_forward).lookup
        if fused is None or not fused.fused:
            return SeparateLookups(self.platform.kernels.estimate)
        lookups = [rank_lookup(config, config.plan, rank, fused=True) for rank in range(config.ranks)]
        together = -(-len(config.tables) // config.ranks)
        model = EmbeddingModel.for_gpu(self.platform.spec.gpu)
        return scaled_to(model, self.platform.kernels.estimate, lookups, together)

    def _kernel_of(self, rank: int, op: int) -> Kernel:
        return self._job.programs[self._job.program_of_rank[rank]].ops[op].kernels[0]

    def _walk(self, loads: Loads) -> FloatArray:
        count = len(loads)
        exchange, exchange_back = self._exchanges(loads)
        reduce_us = update_us = np.zeros(count)
        if loads.gradient_bytes.any():
            reduce_us, update_us = self._replicated(loads.gradient_bytes[:, 0])
        filled = []
        for lane in self._lanes:
            ranks = lane.priced.lane.ranks
            base = lane.priced.times.device_us
            device = np.repeat(np.broadcast_to(base, (len(base), 1, len(ranks))), count, axis=1)
            if lane.copies:
                device[lane.copies[0]] = self._copy.time_us(INDEX_BYTES * loads.lookups[:, ranks])
                device[lane.copies[1]] = self._copy.time_us(INDEX_BYTES * loads.bags[:, ranks])
            device[lane.forward] = lane.slowed(lane.forward, loads.forward_us[:, ranks])
            if lane.join is not None:
                device[lane.join] = self._concat.time_us(POOLED_BYTES * self.batch * loads.columns[:, ranks])
            for launch, times in (
                (lane.backward, loads.backward_us),
                (lane.exchange, exchange),
                (lane.exchange_back, exchange_back),
            ):
                if launch is not None:
                    device[launch] = lane.slowed(launch, times[:, ranks])
            if lane.reduce is not None:
                device[lane.reduce] += reduce_us[:, None]
            device[lane.update] += update_us[:, None]
            filled.append(Priced(lane.priced.times.host_us, device))
        return step_times(self._priced, self.platform, filled)

    def _exchanges(self, loads: Loads) -> tuple[FloatArray, FloatArray]:
        """When each rank is done with the exchange of pooled embeddings, and of gradients."""
        n = self.ranks
        if n == 1:
            return np.zeros_like(loads.columns), np.zeros_like(loads.columns)
        models = self.platform.collectives
        per_column = POOLED_BYTES * self.batch / n
        sent, received = _leaving(loads.columns, per_column, self.costs.ranks_per_node)
        forward = models.alltoallv_times(sent, received, range(n))
        backward = models.alltoallv_times(received, sent, range(n))
        if self.costs.ranks_per_node < n:
            inside = self._inside(loads.columns, per_column)
            forward, backward = np.maximum(forward, inside[0]), np.maximum(backward, inside[1])
        if loads.node_columns.any():
            node = range(self.costs.ranks_per_node)
            summed = POOLED_BYTES * self.batch * loads.node_columns
            shape = summed.shape
            summing = [
                models.estimate(kind, summed.ravel(), node).time_us.reshape(shape) * (summed > 0)
                for kind in ("reduce_scatter", "all_gather")
            ]
            forward, backward = forward + summing[0], backward + summing[1]
        return forward, backward

    def _inside(self, columns: FloatArray, per_column: float) -> tuple[FloatArray, FloatArray]:
        """The part of both exchanges that stays inside the nodes, on the nodes' own links."""
        per_node = self.costs.ranks_per_node
        by_node = columns.reshape(*columns.shape[:-1], -1, per_node)
        sent = per_column * (per_node - 1) * by_node
        received = per_column * (by_node.sum(axis=-1, keepdims=True) - by_node)
        if per_node == 1:
            return np.zeros_like(columns), np.zeros_like(columns)
        models, node = self.platform.collectives, range(per_node)
        there = models.alltoallv_times(sent, received, node).reshape(columns.shape)
        return there, models.alltoallv_times(received, sent, node).reshape(columns.shape)

    def _replicated(self, gradient_bytes: FloatArray) -> tuple[FloatArray, FloatArray]:
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


def _slowing(
    base: FloatArray, slowed: FloatArray, launch_of: dict[int, int]
) -> tuple[FloatArray, FloatArray]:
    """Mean times of the kept launches alone, and how much longer they took beside others."""
    alone, longer = np.zeros(len(launch_of)), np.zeros(len(launch_of))
    for old, new in launch_of.items():
        alone[new] = base[old].mean()
        longer[new] = max(0.0, slowed[old].mean() - alone[new])
    return alone, longer


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
