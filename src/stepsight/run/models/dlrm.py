"""The hybrid-parallel DLRM: local tables, all_to_all, data-parallel dense part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from stepsight.run.lookup import All2All_Pooled_Req, All2All_Pooled_Wait, Exchange, LocalTables, TableBatch
from stepsight.tables.plan import COLUMN_WISE, table_kinds
from stepsight.workload.dlrm.config import DlrmConfig
from stepsight.workload.dlrm.embeddings import sent_widths
from stepsight.workload.dlrm.interactions import interaction_width


def _mlp(sizes: Sequence[int]) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(k, n) for k, n in pairwise(sizes))


@dataclass(slots=True)
class DlrmBatch:
    """One step's input on one rank."""

    dense: torch.Tensor
    tables: list[TableBatch]
    target: torch.Tensor


class CrossLayer(nn.Module):  # type: ignore[misc]
    """One low-rank DCN-v2 layer."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.randn(rank, width) * 0.01)
        self.w = nn.Parameter(torch.randn(width, rank) * 0.01)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x0: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x0 * functional.linear(functional.linear(x, self.v), self.w, self.bias) + x


class Dlrm(nn.Module):  # type: ignore[misc]
    """The dense parameters are the module's; the tables are held next to it."""

    def __init__(self, config: DlrmConfig, rank: int, tables: LocalTables) -> None:
        super().__init__()
        self.config, self.tables = config, tables
        widths = sent_widths(config.plan, config.tables)
        self.exchange = Exchange(rank, config.batch_per_rank, widths)
        self.bottom = _mlp((config.features, *config.bottom))
        dim = config.bottom[-1]
        if config.interaction == "dot":
            odd = [t for t in config.tables if t.dim != dim]
            self.projections = nn.ParameterDict({t.name: torch.randn(dim, t.dim) * 0.01 for t in odd})
        elif config.interaction == "dcnv2":
            width = dim + sum(t.output_columns for t in config.tables)
            self.cross = nn.ModuleList(
                CrossLayer(width, config.cross_rank) for _ in range(config.cross_layers)
            )
        self.top = _mlp((interaction_width(config), *config.top))
        vectors = 1 + len(config.tables)
        lower = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("row", lower[0].clone(), persistent=False)
        self.register_buffer("column", lower[1].clone(), persistent=False)
        self.shards = [s for r in range(config.ranks) for s in config.plan.on_rank(r)]
        self.whole = set(table_kinds(config.plan).values()) <= {"table_wise"}

    def forward(self, batch: DlrmBatch) -> torch.Tensor:
        pooled = self.tables(batch.tables)
        if self.config.ranks > 1:
            received = All2All_Pooled_Req.apply(pooled, self.exchange)
            x = self._dense(batch.dense)
            pooled = All2All_Pooled_Wait.apply(received, self.exchange)
        else:
            x = self._dense(batch.dense)
        x = self._interact(x, pooled)
        for i, layer in enumerate(self.top):
            x = layer(x)
            if i < len(self.top) - 1:
                x = torch.relu(x)
        return x

    def _dense(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.bottom:
            x = torch.relu(layer(x))
        return x

    def _interact(self, x: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        if self.config.interaction == "dot":
            if self.whole and not len(self.projections):
                parts = [pooled]
            else:
                named = self._whole_tables(pooled)
                parts = [
                    functional.linear(p, self.projections[name]) if name in self.projections else p
                    for name, p in named.items()
                ]
            vectors = torch.cat([x, *parts], 1).view(x.shape[0], -1, x.shape[1])
            products = torch.bmm(vectors, vectors.transpose(1, 2))
            return torch.cat([x, products[:, self.row, self.column]], 1)
        parts = [pooled] if self.whole else list(self._whole_tables(pooled).values())
        joined = torch.cat([x, *parts], 1)
        if self.config.interaction == "dcnv2":
            crossed = joined
            for layer in self.cross:
                crossed = layer(joined, crossed)
            return crossed
        return joined

    def _whole_tables(self, pooled: torch.Tensor) -> dict[str, torch.Tensor]:
        """One tensor per table: column parts side by side, row parts added."""
        parts: dict[str, list[torch.Tensor]] = {}
        kinds = {}
        for shard, piece in zip(self.shards, pooled.split([s.width for s in self.shards], 1), strict=True):
            parts.setdefault(shard.table, []).append(piece)
            kinds[shard.table] = shard.kind
        return {name: _join(kinds[name], pieces) for name, pieces in parts.items()}


def _join(kind: str, pieces: list[torch.Tensor]) -> torch.Tensor:
    if len(pieces) == 1:
        return pieces[0]
    if kind == COLUMN_WISE:
        return torch.cat(pieces, 1)
    total = pieces[0]
    for piece in pieces[1:]:
        total = total + piece
    return total


def dlrm_loss(config: DlrmConfig, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """bce and mse on probabilities; bce on logits under autocast or where asked."""
    loss = config.training.loss
    if loss == "bce_logits" or (loss == "bce" and config.training.autocast):
        return functional.binary_cross_entropy_with_logits(logits, target)
    probability = torch.sigmoid(logits)
    if loss == "mse":
        return functional.mse_loss(probability, target)
    return functional.binary_cross_entropy(probability, target)
