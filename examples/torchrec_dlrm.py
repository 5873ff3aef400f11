"""TorchRec's DLRM really trained on CPU ranks: step times, and the operators of one step.

    python examples/torchrec_dlrm.py --ranks 2 --batch 512 --steps 20

Needs torch 2.13.0, torchrec 1.8.0 and fbgemm-gpu-cpu 1.8.0 (both installed with --no-deps). Prints JSON: the
median step, its spread over blocks, and how often each operator ran in a profiled step of rank 0, to set
beside `stepsight predict` of the same sizes (docs/dlrm.md).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROWS, DIM, TABLES, POOLING = 100_000, 64, 8, 10
FEATURES, BOTTOM, TOP = 64, [256, 64], [256, 128, 1]


def batch(size: int, seed: int) -> tuple[torch.Tensor, Any, torch.Tensor]:
    """Dense features, a KeyedJaggedTensor of indices, and labels."""
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    generator = torch.Generator().manual_seed(seed)
    keys = [f"f{i}" for i in range(TABLES)]
    lengths = torch.full((TABLES * size,), POOLING, dtype=torch.int32)
    values = torch.randint(ROWS, (TABLES * size * POOLING,), generator=generator)
    sparse = KeyedJaggedTensor.from_lengths_sync(keys=keys, values=values, lengths=lengths)
    return (
        torch.rand(size, FEATURES, generator=generator),
        sparse,
        torch.rand(size, generator=generator).round(),
    )


def sharded_model(device: torch.device) -> tuple[Any, Any]:
    """The example's model, tables sharded over the ranks with a fused update, and the dense optimizer."""
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.models.dlrm import DLRM
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    tables = [
        EmbeddingBagConfig(name=f"t{i}", embedding_dim=DIM, num_embeddings=ROWS, feature_names=[f"f{i}"])
        for i in range(TABLES)
    ]
    bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    model = DLRM(bags, FEATURES, BOTTOM, TOP, dense_device=device)
    apply_optimizer_in_backward(torch.optim.SGD, bags.parameters(), {"lr": 0.01})
    sharded = DistributedModelParallel(model, device=device)
    dense = [p for name, p in sharded.named_parameters() if "embedding_bags" not in name]
    return sharded, torch.optim.SGD(dense, lr=0.01)


def train(rank: int, ranks: int, size: int, steps: int, blocks: int, port: int, results: Any) -> None:
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ |= {name: str(value) for name, value in places.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model, optimizer = sharded_model(torch.device("cpu"))
    loss_of = torch.nn.BCEWithLogitsLoss()
    inputs = [batch(size // ranks, 100 * rank + i) for i in range(4)]

    def step(i: int) -> None:
        dense, sparse, labels = inputs[i % len(inputs)]
        optimizer.zero_grad()
        loss_of(model(dense, sparse).squeeze(), labels).backward()
        optimizer.step()

    for i in range(5):
        step(i)
    times = []
    for _ in range(blocks):
        dist.barrier()
        began = time.perf_counter()
        for i in range(steps):
            step(i)
        times.append((time.perf_counter() - began) / steps * 1e3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step(0)
    if rank == 0:
        top = Counter(e.name for e in profile.events() if e.cpu_parent is None)
        results.put({"block_ms": times, "operators": dict(top.most_common())})
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train TorchRec's DLRM on CPU ranks.")
    for name, default in (("ranks", 2), ("batch", 512), ("steps", 20), ("blocks", 5), ("port", 29531)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(
        train,
        (chosen.ranks, chosen.batch, chosen.steps, chosen.blocks, chosen.port, results),
        nprocs=chosen.ranks,
    )
    found = results.get()
    blocks = sorted(found["block_ms"])
    found["median_ms"], found["spread"] = blocks[len(blocks) // 2], blocks[-1] / blocks[0] - 1
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
