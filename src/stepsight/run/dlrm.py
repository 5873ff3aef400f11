"""The hybrid-parallel DLRM in plain torch, on any device: local tables, all_to_all, data-parallel dense part.

One ``embedding_bag`` per table; the backward pass scatters scaled row gradients straight
into the weights, so that no dense gradient of a large table ever exists. This is what a
fused sparse update does, table by table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from stepsight.errors import InputError
from stepsight.run.functions import FUNCTIONS, Running
from stepsight.tables.bags import draw_lengths
from stepsight.tables.indices.distributions import draw_indices
from stepsight.tables.lookup import Lookup
from stepsight.workload.dlrm.build import DenseParameters, mlp
from stepsight.workload.dlrm.config import DlrmConfig
from stepsight.workload.dlrm.embeddings import sent_widths
from stepsight.workload.dlrm.interactions import interact

SUPPORTED = ("sgd", "none")
LEARNING_RATE = 0.01


@dataclass(slots=True)
class TableBatch:
    """The lookups of one table in one batch: rows, where each bag starts, and each lookup's bag."""

    indices: torch.Tensor
    offsets: torch.Tensor
    bags: torch.Tensor

    @classmethod
    def sample(cls, lookup: Lookup, table: int, generator: np.random.Generator, device: str) -> TableBatch:
        """Bags of ``pooling`` lookups on average, to the exact total."""
        part = lookup.tables[table]
        lengths = draw_lengths(part.pooling, part.bag_spread, part.batch, generator)
        total = int(lengths.sum())
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        bags = np.repeat(np.arange(part.batch, dtype=np.int64), lengths)
        indices = draw_indices(part.indices, part.rows, total, generator)
        return cls(*(torch.from_numpy(a).to(device) for a in (indices, offsets, bags)))


def pooled(weight: torch.Tensor, batch: TableBatch) -> torch.Tensor:
    """Sum-pooled rows of one table: bags × dim."""
    forward = torch.ops.aten._embedding_bag_forward_only
    result: torch.Tensor = forward(weight, batch.indices, batch.offsets, False, 0, False, None, True)[0]
    return result


def update_rows(weight: torch.Tensor, batch: TableBatch, grad: torch.Tensor, learning_rate: float) -> None:
    """Plain SGD on the rows that were looked up; rows looked up twice are updated twice."""
    rows = (grad * -learning_rate).index_select(0, batch.bags)
    weight.scatter_add_(0, batch.indices.unsqueeze(1).expand_as(rows), rows)


class LookupFunction(torch.autograd.Function):  # type: ignore[misc]
    """Lookup forward, fused update backward. ``anchor`` makes autograd call the backward."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, tables: LocalTables, batch: Sequence[TableBatch]
    ) -> torch.Tensor:
        ctx.tables, ctx.batch = tables, batch
        parts = [pooled(w, b) for w, b in zip(tables.weights, batch, strict=True)]
        return torch.cat(parts, 1) if parts else torch.empty(tables.rows, 0)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None, None]:
        tables: LocalTables = ctx.tables
        if tables.optimizer != "none":
            pieces = grad.split([w.shape[1] for w in tables.weights], 1)
            for weight, batch, piece in zip(tables.weights, ctx.batch, pieces, strict=True):
                update_rows(weight, batch, piece, LEARNING_RATE)
        return None, None, None


class LocalTables:
    """The tables of one rank. Plain tensors, so that no data-parallel wrapper reduces them."""

    def __init__(self, lookup: Lookup, rows: int, device: str) -> None:
        if lookup.optimizer not in SUPPORTED:
            raise InputError(
                "[training] sparse_optimizer",
                f"running {lookup.optimizer!r} for tables is not supported",
                f"use one of {', '.join(SUPPORTED)} to run; prediction knows all",
            )
        self.weights = [torch.rand(t.rows, t.dim, device=device) - 0.5 for t in lookup.tables]
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.optimizer, self.rows = lookup.optimizer, rows

    def __call__(self, batch: Sequence[TableBatch]) -> torch.Tensor:
        pooled: torch.Tensor = LookupFunction.apply(self.anchor, self, batch)
        return pooled


@dataclass(slots=True)
class Exchange:
    """Who holds how many pooled columns, and this rank's share of the samples."""

    rank: int
    samples: int
    widths: list[int]
    pending: list[Any] = field(default_factory=list)

    @property
    def sent(self) -> list[int]:
        """Values this rank sends to each rank in the forward pass."""
        return [self.samples * self.widths[self.rank]] * len(self.widths)

    @property
    def received(self) -> list[int]:
        return [self.samples * width for width in self.widths]


def alltoall(send: torch.Tensor, sent: list[int], received: list[int]) -> tuple[torch.Tensor, Any]:
    """Starts an all_to_all of flat tensors; returns the buffer and the handle to wait on."""
    buffer = send.new_empty(sum(received))
    return buffer, dist.all_to_all_single(buffer, send, received, sent, async_op=True)


class All2All_Pooled_Req(torch.autograd.Function):  # type: ignore[misc]  # noqa: N801
    """Sends the pooled columns of the local tables to the ranks that own the samples."""

    @staticmethod
    def forward(ctx: Any, pooled: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange, ctx.shape = exchange, pooled.shape
        buffer, work = alltoall(pooled.view(-1), exchange.sent, exchange.received)
        exchange.pending = [work]
        return buffer

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient, work = ctx.exchange.pending
        work.wait()
        return gradient.view(ctx.shape), None


class All2All_Pooled_Wait(torch.autograd.Function):  # type: ignore[misc]  # noqa: N801
    """Waits, and lays the tables of all ranks side by side for the rank's own samples."""

    @staticmethod
    def forward(ctx: Any, buffer: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange = exchange
        exchange.pending[0].wait()
        parts = buffer.split(exchange.received)
        return torch.cat([p.view(exchange.samples, -1) for p in parts], 1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        exchange: Exchange = ctx.exchange
        pieces = grad.split(exchange.widths, 1)
        send = torch.cat([piece.reshape(-1) for piece in pieces])
        gradient, work = alltoall(send, exchange.received, exchange.sent)
        exchange.pending = [gradient, work]
        return send, None  # only its size counts: the start's gradient waits for the real one


@dataclass(slots=True)
class DlrmBatch:
    """One step's input on one rank."""

    dense: torch.Tensor
    tables: list[TableBatch]
    target: torch.Tensor


class Dlrm(nn.Module):  # type: ignore[misc]
    """The description that is recorded for predictions, run by torch; the tables are held next to it."""

    def __init__(self, config: DlrmConfig, rank: int, tables: LocalTables) -> None:
        super().__init__()
        self.config, self.tables = config, tables
        self.exchange = Exchange(rank, config.batch_per_rank, sent_widths(config.plan, config.tables))
        self.tape = Running(self, tables.anchor.device)
        self.tape.functions = {**FUNCTIONS, "lower_triangle": self.below_diagonal}
        self.dense: Any = DenseParameters.register(self.tape, config)
        vectors = 1 + len(config.tables)
        rows, columns = torch.tril_indices(vectors, vectors, -1, device=tables.anchor.device)
        self.pairs = rows.clone(), columns.clone()

    def below_diagonal(self, products: torch.Tensor) -> torch.Tensor:
        """Of each pair of vectors one product."""
        row, column = self.pairs
        return products[:, row, column]

    def forward(self, batch: DlrmBatch) -> torch.Tensor:
        pooled, dense, tape = self.tables(batch.tables), self.dense, self.tape
        many = self.config.ranks > 1
        received = All2All_Pooled_Req.apply(pooled, self.exchange) if many else pooled
        x: Any = mlp(tape, "bottom", batch.dense, dense.bottom, last_relu=True)
        pooled = All2All_Pooled_Wait.apply(received, self.exchange) if many else pooled
        joined = interact(tape, self.config, x, pooled, dense.interaction)
        out: Any = mlp(tape, "top", joined, dense.top, last_relu=False)
        result: torch.Tensor = out
        return result


def dlrm_loss(config: DlrmConfig, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """bce and mse on probabilities; bce on logits under autocast or where asked."""
    loss = config.training.loss
    if loss == "bce_logits" or (loss == "bce" and config.training.autocast):
        return functional.binary_cross_entropy_with_logits(logits, target)
    probability = torch.sigmoid(logits)
    if loss == "mse":
        return functional.mse_loss(probability, target)
    return functional.binary_cross_entropy(probability, target)
