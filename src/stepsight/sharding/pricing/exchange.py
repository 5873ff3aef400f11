"""What a plan's exchanges take: pooled embeddings forward, gradients back, replicated gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.platform.load import Platform
from stepsight.sharding.pricing.loads import Loads

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
