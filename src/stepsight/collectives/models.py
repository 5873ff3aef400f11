"""The collectives of one platform: a time for any kind, message and group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepsight.collectives.benchmark_files import read_platform_curves
from stepsight.collectives.measured import MeasuredSystem, load_catalogue
from stepsight.collectives.pricing import Pricing, by_nodes, price, price_monotone, slower
from stepsight.collectives.roofline import GroupShape, bus_factor, group_shape, remote_share
from stepsight.errors import StepsightError
from stepsight.estimate import Estimate, Estimates, FloatArray, Source
from stepsight.hardware.spec import PlatformSpec
from stepsight.program.job import COLLECTIVE_KINDS, Copies

if TYPE_CHECKING:
    from stepsight.collectives.site import SiteCollectives


BARRIER_BYTES = 4.0
"""A barrier is an all_reduce of one number (torch.distributed on NCCL)."""


@dataclass(frozen=True, slots=True)
class CollectiveModels:
    """Prices collectives on one platform.

    ``estimate`` answers for balanced collectives; an all_to_allv is priced by the bytes that
    each rank really sends and receives. A group of one rank is free. ``own`` is what was
    measured on this very platform; else the catalogue's machines answer.
    """

    platform: PlatformSpec
    own: MeasuredSystem | None = None
    _prices: dict[tuple[str, GroupShape], Pricing] = field(default_factory=dict, repr=False, compare=False)
    _nic_prices: dict[tuple[str, GroupShape], Pricing] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def load(cls, folder: Path, spec: PlatformSpec) -> CollectiveModels:
        """Models from a platform folder's own curves (``collectives/``), then the catalogue's."""
        return cls(spec, read_platform_curves(folder, spec))

    def estimate(self, kind: str, bytes: npt.ArrayLike, ranks: Sequence[int]) -> Estimates:
        """Times of one kind of collective over one group, for many message sizes.

        Bytes follow nccl-tests (see `stepsight.program.job.Collective`).
        """
        sizes = _checked_bytes(bytes)
        shape = group_shape(ranks, self.platform)
        if shape.ranks == 1:
            return Estimates.uniform(np.zeros(len(sizes)), Source.ROOFLINE, 0.0)
        if kind == "barrier":
            return self._price("all_reduce", shape).estimate(np.full(len(sizes), BARRIER_BYTES))
        return self._price(_balanced(kind), shape).estimate(sizes)

    def alltoallv_times(
        self, sent_bytes: npt.ArrayLike, received_bytes: npt.ArrayLike, ranks: Sequence[int]
    ) -> FloatArray:
        """When each rank is done with its part of an all_to_allv, in µs after the last arrival.

        Both arrays are ``[..., n]``: what each rank sends to and receives from the others,
        what stays local not counted. The busier direction decides.
        """
        busiest = np.maximum(
            np.asarray(sent_bytes, dtype=np.float64), np.asarray(received_bytes, dtype=np.float64)
        )
        shape = group_shape(ranks, self.platform)
        if busiest.shape[-1:] != (shape.ranks,):
            raise StepsightError(f"all_to_allv: {busiest.shape[-1:]} byte counts for {shape.ranks} ranks")
        if shape.ranks == 1:
            return np.zeros_like(busiest)
        balanced = busiest / bus_factor("all_to_all", shape.ranks)
        return self._price("all_to_all", shape).time_us(balanced)

    def estimate_alltoallv(
        self, send_bytes: npt.ArrayLike, ranks: Sequence[int]
    ) -> tuple[FloatArray, Estimate]:
        """Per-rank finish times and the time of the whole all_to_allv, from its send matrix."""
        matrix = np.asarray(send_bytes, dtype=np.float64)
        n = len(ranks)
        if matrix.shape != (n, n):
            raise StepsightError(f"the send matrix is {matrix.shape}, but the group has {n} ranks")
        if not np.isfinite(matrix).all() or (matrix < 0).any():
            raise StepsightError("the send matrix holds negative or missing byte counts")
        if n == 1:
            group_shape(ranks, self.platform)
            return np.zeros(1), Estimate(0.0, Source.ROOFLINE, 0.0)
        finish = self._matrix_times(matrix, ranks)
        busiest = float(_busier(matrix - np.diag(np.diag(matrix))).max()) / bus_factor("all_to_all", n)
        whole = self.estimate("all_to_all", [busiest], ranks)[0]
        return finish, Estimate(float(finish.max()), whole.source, whole.spread, whole.note)

    def _matrix_times(self, matrix: FloatArray, ranks: Sequence[int]) -> FloatArray:
        """Finish times of an all_to_allv; over nodes, what stays in a node takes the node's links."""
        shape = group_shape(ranks, self.platform)
        remote = matrix - np.diag(np.diag(matrix))
        if shape.inside_a_node:
            return self.alltoallv_times(remote.sum(axis=1), remote.sum(axis=0), ranks)
        node = np.asarray(ranks) // self.platform.gpus_per_node
        same_node = node[:, None] == node[None, :]
        leaving = _busier(np.where(same_node, 0.0, remote)) / remote_share("all_to_all", shape)
        finish = self._price("all_to_all", shape).time_us(leaving / bus_factor("all_to_all", shape.ranks))
        if shape.per_node == 1:
            return finish
        inside = GroupShape(shape.per_node, 1, shape.per_node)
        staying = _busier(np.where(same_node, remote, 0.0)) / bus_factor("all_to_all", shape.per_node)
        return np.maximum(finish, self._price("all_to_all", inside).time_us(staying))

    def _price(self, kind: str, shape: GroupShape) -> Pricing:
        key = (kind, shape)
        if key not in self._prices:
            priced = self._by_nics(kind, shape)
            if self.own is None and not shape.inside_a_node and shape.per_node > 1 and kind != "send_recv":
                inside = self._price(kind, GroupShape(shape.per_node, 1, shape.per_node))
                # A ring sends 2(n-1)/n of the bytes over each link, an exchange what stays in a node.
                ring = bus_factor(kind, shape.ranks) / bus_factor(kind, shape.per_node)
                share = shape.per_node / shape.ranks if kind == "all_to_all" else ring
                priced = slower(priced, inside, share)
            self._prices[key] = priced
        return self._prices[key]

    def _by_nics(self, kind: str, shape: GroupShape) -> Pricing:
        """The price over nodes before the links inside one have their say."""
        key = (kind, shape)
        if key not in self._nic_prices:
            catalogue = load_catalogue()
            systems = catalogue.systems if self.own is None else (self.own, *catalogue.systems)
            make = price if self.own is not None else price_monotone
            priced = make(kind, shape, self.platform, systems, catalogue.rank_transfer)
            if self.own is None:
                priced = by_nodes(kind, shape, priced, partial(self._by_nics, kind))
            self._nic_prices[key] = priced
        return self._nic_prices[key]


def _busier(sent_to: FloatArray) -> FloatArray:
    """Of every rank's sent and received bytes the larger."""
    return np.asarray(np.maximum(sent_to.sum(axis=1), sent_to.sum(axis=0)), dtype=np.float64)


def _balanced(kind: str) -> str:
    if kind not in COLLECTIVE_KINDS:
        raise StepsightError(f"unknown collective {kind!r}; one of {', '.join(COLLECTIVE_KINDS)}")
    return "all_to_all" if kind == "all_to_allv" else kind


def _checked_bytes(bytes: npt.ArrayLike) -> FloatArray:
    sizes = np.atleast_1d(np.asarray(bytes, dtype=np.float64))
    if not np.isfinite(sizes).all() or (sizes < 0).any():
        raise StepsightError("a collective needs byte counts of zero or more")
    return sizes


KIND = "all_to_all"


def dispatched(
    models: CollectiveModels | SiteCollectives, bytes_: float, copies: Copies, ranks: Sequence[int]
) -> Estimate:
    """An all_to_all of ``bytes_``, all copies counted, whose rows are sent as `Copies` says."""
    shape, each = group_shape(ranks, models.platform), bytes_ / copies.count
    to_ranks = each * copies.reached(shape.ranks)
    if shape.inside_a_node:
        return models.estimate(KIND, [to_ranks], ranks)[0]
    per_node = models.platform.gpus_per_node
    node = [rank for rank in ranks if rank // per_node == ranks[0] // per_node]
    over = models.estimate(KIND, [each * copies.reached(shape.nodes)], ranks)[0]
    inside = models.estimate(KIND, [to_ranks], node)[0]
    return max(over, inside, key=lambda e: e.time_us)
