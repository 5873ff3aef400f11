"""A DLRM as TorchRec trains it on CPU ranks (extra: torchrec and fbgemm).

TorchRec's own model, sharded by its `DistributedModelParallel` after our plan, with the fused update of
FBGEMM's table-batched embeddings, and driven by its sparse-data-distribution pipeline: three batches are in
flight. The loader makes a KeyedJaggedTensor out of arrays in the training process, as the example's does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from stepsight.errors import InputError
from stepsight.tables.bags import draw_lengths
from stepsight.tables.indices.distributions import draw_indices
from stepsight.tables.lookup import FBGEMM_OPTIMIZERS
from stepsight.tables.torchrec_plan import Document, torchrec_document
from stepsight.workload.dlrm.config import DlrmConfig

COLLECTION = "model.sparse_arch.embedding_bag_collection"
"""Where the tables sit in TorchRec's `DLRMTrain`."""
LEARNING_RATE = 1e-3


class TorchrecSteps:
    """One rank of the pipeline; `step` trains on the next batch."""

    def __init__(self, config: DlrmConfig, batches: int, generator: np.random.Generator) -> None:
        _check(config)
        from torchrec.distributed import TrainPipelineSparseDist

        device = torch.device("cpu")
        self.model = _sharded(config, device)
        self.optimizer = _optimizer(config, self.model)
        self._batches = _loader(config, batches, generator)
        self._pipeline = TrainPipelineSparseDist(self.model, self.optimizer, device)

    def step(self) -> None:
        """The current batch forward and backward, the next one's indices exchanged, the one after loaded."""
        self._pipeline.progress(self._batches)


def _check(c: DlrmConfig) -> None:
    wrong = {
        "one rank": c.ranks < 2,
        "interaction = 'cat'": c.interaction == "cat",
        "tables of different dims": len({t.dim for t in c.tables}) > 1 or c.tables[0].dim != c.bottom[-1],
        "a dim that 4 does not divide": any(t.dim % 4 for t in c.tables),
        "weights, half-precision rows or host placement": any(
            t.weighted or t.dtype != "fp32" or t.placement != "device" for t in c.tables
        ),
        f"loader = {c.loader!r}": c.loader == "mapped",
        f"loss = {c.training.loss!r}": c.training.loss != "bce_logits",
        f"precision = {c.training.precision!r}": c.training.precision != "fp32",
        f"exchange_dtype = {c.exchange_dtype!r}": c.exchange_dtype != "fp32",
        f"a sparse {c.sparse_optimizer}": c.sparse_optimizer not in FBGEMM_OPTIMIZERS,
        f"a dense {c.training.optimizer}": c.training.optimizer not in _DENSE,
    }
    for what, holds in wrong.items():
        if holds:
            raise InputError(
                f"{c.source}: [training]: stack", f"torchrec with {what} can be predicted, not run on a CPU",
                "two ranks or more, dot or dcnv2, one dim, fp32, bce_logits, sgd or adagrad",
            )  # fmt: skip


def _sharded(c: DlrmConfig, device: torch.device) -> Any:
    """TorchRec's model with its tables where the plan has them."""
    try:
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRMTrain
        from torchrec.modules.embedding_configs import EmbeddingBagConfig
        from torchrec.modules.embedding_modules import EmbeddingBagCollection
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
    except (ImportError, OSError) as error:
        raise InputError(
            "torchrec", f"does not load ({error})",
            "with torch 2.13.0 install torchrec==1.8.0 and fbgemm-gpu-cpu==1.8.0, both with --no-deps",
        ) from None  # fmt: skip

    tables = [
        EmbeddingBagConfig(
            name=t.name,
            embedding_dim=t.dim,
            num_embeddings=t.rows,
            feature_names=features(t.name, t.features),
        )
        for t in c.tables
    ]
    bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    sparse = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "rowwise_adagrad": RowWiseAdagrad}
    apply_optimizer_in_backward(sparse[c.sparse_optimizer], bags.parameters(), {"lr": LEARNING_RATE})
    sizes = (bags, c.features, list(c.bottom), list(c.top))
    if c.interaction == "dcnv2":
        model = DLRM_DCN(*sizes, c.cross_layers, c.cross_rank, dense_device=device)
    else:
        model = DLRM(*sizes, dense_device=device)
    plan = sharding_plan(torchrec_document(c.plan, module=COLLECTION, device="cpu"))
    return DistributedModelParallel(DLRMTrain(model), device=device, plan=plan)


def sharding_plan(document: Document) -> Any:
    """TorchRec's ``ShardingPlan`` object for a plan document."""
    from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan

    return ShardingPlan(
        {
            module: EmbeddingModuleShardingPlan({name: _parameter(entry) for name, entry in tables.items()})
            for module, tables in document["plan"].items()
        }
    )


def _parameter(entry: Mapping[str, Any]) -> Any:
    from torchrec.distributed.embedding_types import ShardingType
    from torchrec.distributed.types import (
        CacheParams,
        EnumerableShardingSpec,
        ParameterSharding,
        ShardMetadata,
    )

    spec = None
    if entry["sharding_type"] != ShardingType.DATA_PARALLEL.value:
        spec = EnumerableShardingSpec(
            [ShardMetadata(s["shard_offsets"], s["shard_sizes"], s["placement"]) for s in entry["shards"]]
        )
    cache = CacheParams(**entry["cache_params"]) if "cache_params" in entry else None
    return ParameterSharding(
        entry["sharding_type"], entry["compute_kernel"], entry["ranks"], spec, cache_params=cache
    )


def features(table: str, count: int) -> list[str]:
    """The sparse features that share a table."""
    return [f"f_{table}"] if count == 1 else [f"f_{table}_{i}" for i in range(count)]


def _optimizer(c: DlrmConfig, model: Any) -> Any:
    from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
    from torchrec.optim.optimizers import in_backward_optimizer_filter

    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.named_parameters())),
        lambda parameters: _DENSE[c.training.optimizer](parameters, lr=LEARNING_RATE),
    )
    return CombinedOptimizer([model.fused_optimizer, dense])


_DENSE = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}


def _loader(c: DlrmConfig, batches: int, generator: np.random.Generator) -> Iterator[Any]:
    """Batches without end: arrays that are drawn once, made into tensors anew every time."""
    from torchrec.datasets.utils import Batch
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    local = c.batch_per_rank
    drawn = []
    for _ in range(batches):
        sizes = [draw_lengths(t.pooling, t.bag_spread, local * t.features, generator) for t in c.tables]
        values = [
            draw_indices(t.indices, t.rows, int(size.sum()), generator)
            for t, size in zip(c.tables, sizes, strict=True)
        ]
        dense = generator.random((local, c.features), dtype=np.float32)
        labels = generator.integers(0, 2, local).astype(np.float32)
        drawn.append((values, [size.astype(np.int32) for size in sizes], dense, labels))
    keys = [key for t in c.tables for key in features(t.name, t.features)]

    def batch(arrays: Any) -> Any:
        values, lengths, dense, labels = arrays
        sparse = KeyedJaggedTensor.from_lengths_sync(
            keys=keys,
            values=torch.concat([torch.from_numpy(v).flatten() for v in values]),
            lengths=torch.concat([torch.from_numpy(n).flatten() for n in lengths]),
        )
        return Batch(torch.from_numpy(dense), sparse, torch.from_numpy(labels))

    if c.loader == "none":
        yield from itertools.cycle([batch(arrays) for arrays in drawn])
    for arrays in itertools.cycle(drawn):
        yield batch(arrays)
