"""The operators that look tables up on this machine, behind one interface for its benchmarks.

``embedding_bag``: one torch call per table, as ``stepsight run`` trains. ``fbgemm``: FBGEMM's
table-batched operator, one call for all tables, whose backward updates the rows itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from stepsight.errors import StepsightError
from stepsight.tables.lookup import EMBEDDING_BAG, FBGEMM, FBGEMM_OPTIMIZERS, Lookup
from stepsight.tables.table import optimizer_state

LEARNING_RATE = 1e-3
INSTALL_FBGEMM = "pip install torch==2.13.0 && pip install fbgemm-gpu-cpu==1.8.0"
"""The two load each other only in matching releases."""

Call = Callable[[], Any]


class EmbeddingBagTables:
    """One ``embedding_bag`` call per table, and per table a scatter of scaled row gradients."""

    def __init__(self, lookup: Lookup, device: str, memory: Any | None = None) -> None:
        self._lookup, self._device, self.calls = lookup, device, len(lookup.tables)
        self._weights, used = [], 0
        for table in lookup.tables:
            size = table.rows * table.dim
            flat = _memory(size, None if memory is None else memory[used:], table.dtype, device)
            self._weights.append(flat.view(table.rows, table.dim))
            used += size

    def batch(self, rng: np.random.Generator) -> Any:
        from stepsight.run.lookup import TableBatch

        return [TableBatch.sample(self._lookup, i, rng, self._device) for i in range(self.calls)]

    def forward(self, batch: Any) -> Sequence[Call]:
        from stepsight.run.lookup import pooled

        return [partial(pooled, weight, table) for weight, table in zip(self._weights, batch, strict=True)]

    def backward(self, batch: Any, outputs: Sequence[Any]) -> Sequence[Call]:
        import torch

        from stepsight.run.lookup import update_rows

        gradients = torch.cat(list(outputs), 1).split([w.shape[1] for w in self._weights], 1)
        return [
            partial(update_rows, weight, table, gradient, LEARNING_RATE)
            for weight, table, gradient in zip(self._weights, batch, gradients, strict=True)
        ]

    @property
    def workspace_bytes(self) -> int:
        """Outputs, gradients, a table's expanded gradient and its sort."""
        widest = max((t.lookups * (t.dim * 4 + 64) for t in self._lookup.tables), default=0.0)
        return int(4 * _output_bytes(self._lookup) + 2 * widest)


class FbgemmTables:
    """All tables in one call of FBGEMM's table-batched operator, as TorchRec makes it."""

    calls = 1

    def __init__(self, lookup: Lookup, device: str, memory: Any | None = None) -> None:
        training, common, configs = _fbgemm(lookup, device)
        sizes = [t.rows * t.dim for t in lookup.tables]
        per_element, per_row = optimizer_state(lookup.optimizer)
        state = int(sum(t.rows * (per_element * t.dim + per_row) for t in lookup.tables))
        flat = _memory(sum(sizes) + state, memory, "fp32", device)
        buffers = {"weights": flat[: sum(sizes)]}
        if state:
            buffers["momentum1"] = flat[sum(sizes) :]
        place = (common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
        self._lookup = lookup
        self._module = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(t.rows, t.dim, *place) for t in lookup.tables],
            optimizer=getattr(configs.EmbOptimType, FBGEMM_OPTIMIZERS[lookup.optimizer]),
            learning_rate=LEARNING_RATE,
            preallocated_host_buffers=buffers,
        )

    def batch(self, rng: np.random.Generator) -> Any:
        """All tables' indices one after the other, and where each bag of each table starts."""
        import torch

        from stepsight.run.lookup import TableBatch

        tables = [TableBatch.sample(self._lookup, i, rng, "cpu") for i in range(len(self._lookup.tables))]
        starts = np.cumsum([0, *(len(t.indices) for t in tables)])
        offsets = [t.offsets[:-1] + int(start) for t, start in zip(tables, starts, strict=False)]
        return torch.cat([t.indices for t in tables]), torch.cat([*offsets, torch.tensor(starts[-1:])])

    def forward(self, batch: Any) -> Sequence[Call]:
        return [partial(self._module, *batch)]

    def backward(self, batch: Any, outputs: Sequence[Any]) -> Sequence[Call]:
        (output,) = outputs
        return [partial(output.backward, output.detach().clone())]

    @property
    def workspace_bytes(self) -> int:
        """Outputs and gradients, every table's sorted lookups (16 bytes each) and the sort's buffers."""
        lookups = sum(t.lookups for t in self._lookup.tables)
        return int(4 * _output_bytes(self._lookup) + 2 * 32 * lookups)


OPERATORS: dict[str, type[EmbeddingBagTables] | type[FbgemmTables]] = {
    EMBEDDING_BAG: EmbeddingBagTables,
    FBGEMM: FbgemmTables,
}


def _fbgemm(lookup: Lookup, device: str) -> tuple[Any, Any, Any]:
    """FBGEMM's modules, where it can do this lookup."""
    if device != "cpu":
        raise StepsightError(f"the fbgemm operator is measured on a CPU only, not on {device}")
    if lookup.optimizer not in FBGEMM_OPTIMIZERS:
        raise StepsightError(
            f"FBGEMM has no fused {lookup.optimizer} on a CPU; use one of {', '.join(FBGEMM_OPTIMIZERS)}"
        )
    if any(t.dtype != "fp32" or t.weighted or t.dim % 4 for t in lookup.tables):
        raise StepsightError("the fbgemm operator is measured for unweighted fp32 rows of 4, 8, 12, … values")
    try:
        from fbgemm_gpu import (
            split_embedding_configs,
            split_table_batched_embeddings_ops_common,
            split_table_batched_embeddings_ops_training,
        )
    except (ImportError, OSError) as error:
        raise StepsightError(f"fbgemm-gpu-cpu does not load ({error}): {INSTALL_FBGEMM}") from None
    return (
        split_table_batched_embeddings_ops_training,
        split_table_batched_embeddings_ops_common,
        split_embedding_configs,
    )


def _memory(values: int, memory: Any | None, dtype: str, device: str) -> Any:
    """A number of values, of the memory given or new."""
    import torch

    if memory is None:
        names = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
        return torch.zeros(values, dtype=names[dtype], device=device)
    if values > memory.numel():
        raise StepsightError(f"the lookup's tables need more than the {memory.numel()} values given")
    return memory[:values]


def _output_bytes(lookup: Lookup) -> int:
    return sum(t.batch * t.dim for t in lookup.tables) * 4
