"""Sorts, and gradients of embedding rows that many lookups share.

A radix sort: one kernel counts the digits of all keys, one adds the counts up, and one moves keys and
positions for every digit of eight bits. A single block sorts what fits into it. Keys of many bits in short
lists take as many starts as digits.

ATen (embedding_dense_backward with more than 3,072 lookups) sorts the lookups by row and cuts each row's into
segments of ten, which threads add up side by side. A second kernel then adds a row's segments in series, one
thread a column, and every addition waits for its operand. Few rows with millions of lookups, as the buckets
of T5's relative positions have, make that chain the longest part of the backward.
"""

from __future__ import annotations

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.kernels.columns import Batch

ONE_BLOCK_KEYS = 2304
"""Keys that one block sorts: 256 threads with nine keys of eight bytes (cub's code)."""


def passes(batch: Batch) -> FloatArray:
    """Digits of eight bits that are sorted by: those stated, else all of a key."""
    return np.where(batch.dims["passes"] > 0, batch.dims["passes"], batch.element_bytes)


def passes_us(batch: Batch, start_us: float) -> FloatArray:
    """The starts of all passes, none where one block sorts everything."""
    return np.where(batch.dims["elements"] > ONE_BLOCK_KEYS, passes(batch) * start_us, 0.0)


SEGMENT = 10.0
"""Lookups that one thread adds up (NROWS_PER_THREAD in ATen/native/cuda/EmbeddingBackwardKernel.cu)."""
SORTED_ABOVE = 3072
"""Fewer lookups take a kernel without segments (ATen/native/cuda/Embedding.cu)."""
ADDITION_US = 0.2
"""One addition of the chain: a round trip to the cache, about 350 clocks. Read off steps of T5-large on an
H100 (library models), which leave 8 to 10 ms for 1,048,576 lookups and 30 to 50 ms for 4,194,304 into 32
rows."""
FEW_ROWS = 1000.0
"""Lookups a row from which a table holds buckets rather than words."""
HOT_BUCKET = 0.45
"""Share of the most popular bucket where nobody states it: T5's last bucket holds all distances above 128,
0.38 of the pairs at a length of 1,024 and 0.44 at 2,048."""
CHAINED = frozenset({"", "scatter", "embedding_dense_backward", "embedding_backward"})


def chain_us(batch: Batch) -> FloatArray:
    """How long the longest chain takes; zero for short lists and for kernels that add otherwise."""
    d = batch.dims
    if batch.family != "scatter":
        return np.zeros(len(batch))
    lookups, table_rows = d["rows"], np.maximum(d["table_rows"], 1.0)
    assumed = np.where(
        lookups >= FEW_ROWS * table_rows, np.maximum(HOT_BUCKET, 1 / table_rows), 1 / table_rows
    )
    hottest = np.where(d["hottest"] > 0, d["hottest"], assumed)
    chained = batch.where(lambda kind: kind.variant in CHAINED) & (lookups > SORTED_ABOVE)
    return np.where(chained, lookups * hottest / SEGMENT * ADDITION_US, 0.0)
