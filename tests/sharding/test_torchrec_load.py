"""Exported plans of every kind, loaded and trained by TorchRec on four CPU ranks (skipped without it)."""

import os
import socket

import pytest

pytest.importorskip("torchrec", reason="TorchRec is not installed (torchrec==1.8.0, fbgemm-gpu-cpu==1.8.0)")

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv

from stepsight.run.torchrec import sharding_plan
from stepsight.tables.plan import COLUMN_WISE, DATA_PARALLEL, KINDS, ROW_WISE, TABLE_ROW_WISE, Plan, Shard
from stepsight.tables.torchrec_plan import torchrec_document

RANKS, NODE_RANKS, ROWS, DIM, BATCH = 4, 2, 63, 16, 8


def shards() -> list[Shard]:
    """A table of each kind; ``grid`` is cut by columns over nodes and by rows inside each."""
    quarters = [(16 * r, min(16 * r + 16, ROWS)) for r in range(RANKS)]
    halves = [(0, 32), (32, ROWS)]
    return [
        Shard("table_wise", 2, (0, DIM), (0, ROWS)),
        *(Shard("column_wise", 3 * c, (8 * c, 8 * c + 8), (0, ROWS), COLUMN_WISE) for c in range(2)),
        *(Shard("row_wise", r, (0, DIM), rows, ROW_WISE) for r, rows in enumerate(quarters)),
        *(Shard("table_row_wise", 2 + r, (0, DIM), rows, TABLE_ROW_WISE) for r, rows in enumerate(halves)),
        *(Shard("grid", 2 * c + r, (8 * c, 8 * c + 8), rows, TABLE_ROW_WISE)
          for c in range(2) for r, rows in enumerate(halves)),
        *(Shard("data_parallel", r, (0, DIM), (0, ROWS), DATA_PARALLEL) for r in range(RANKS)),
    ]  # fmt: skip


class Lookups(torch.nn.Module):
    def __init__(self, tables: list[str]) -> None:
        super().__init__()
        configs = [
            EmbeddingBagConfig(name=t, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[f"f_{t}"])
            for t in tables
        ]
        self.ebc = EmbeddingBagCollection(device=torch.device("cpu"), tables=configs)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        return self.ebc(features).values()


def train(rank: int, document: dict[str, dict[str, object]], port: int) -> None:
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS),
        LOCAL_WORLD_SIZE=str(NODE_RANKS), LOCAL_RANK=str(rank % NODE_RANKS),
    )  # fmt: skip
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    tables = list(document["plan"]["ebc"])  # type: ignore[call-overload]
    model = DistributedModelParallel(
        Lookups(tables), env=ShardingEnv.from_process_group(dist.group.WORLD), device=torch.device("cpu"),
        plan=sharding_plan(document), sharders=[EmbeddingBagCollectionSharder()],
    )  # fmt: skip
    bags = len(tables) * BATCH
    features = KeyedJaggedTensor.from_lengths_sync(
        keys=[f"f_{t}" for t in tables], values=torch.randint(0, ROWS, (3 * bags,)),
        lengths=torch.full((bags,), 3, dtype=torch.int32),
    )  # fmt: skip
    pooled = model(features)
    assert pooled.shape == (BATCH, DIM * len(tables))
    pooled.sum().backward()
    dist.destroy_process_group()


def test_torchrec_trains_with_an_exported_plan_of_every_kind() -> None:
    plan = Plan(RANKS, tuple(shards()))
    assert {shard.kind for shard in plan.shards} == set(KINDS)
    document = torchrec_document(plan, module="ebc", device="cpu", ranks_per_node=NODE_RANKS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(train, (document, port), RANKS)
