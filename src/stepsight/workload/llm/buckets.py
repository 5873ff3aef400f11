"""How many buckets DistributedDataParallel reduces a stage's gradients in.

A bucket holds whole tensors, in the order in which a backward pass makes their gradients, and is closed once
it has reached its size; the first is small, so that reduction begins early. Large layers have tensors above
that size, so that there are fewer buckets than bytes would tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepsight.dtypes import dtype_bytes
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.cut import Piece

FIRST_BYTES = 2**20
"""DDP's first bucket (`dist._DEFAULT_FIRST_BUCKET_BYTES`)."""


def bucket_count(c: LanguageConfig, pieces: Iterable[Piece]) -> int:
    """Buckets of a stage that holds these pieces of the model."""
    each = dtype_bytes(c.training.dtype) / c.layout.tensor
    limit, filled, count = float(FIRST_BYTES), 0.0, 0
    for parameters in _tensors(c, pieces):
        filled += parameters * each
        if filled >= limit:
            limit, filled, count = c.layout.bucket_mb * 2**20, 0.0, count + 1
    return count + (filled > 0)


def _tensors(c: LanguageConfig, pieces: Iterable[Piece]) -> Iterator[int]:
    """Parameters of the stage's matrices, the last one first, with projections that share an input fused.
    Norms and biases belong to no bucket of their own."""
    m = c.model
    out = m.heads * m.head_dim * m.hidden
    first = (2 if m.gated else 1) * m.ffn * m.hidden
    layer = (m.ffn * m.hidden, first, out, m.attention_parameters - out)
    for piece in sorted(pieces, key=lambda p: -p.start):
        if piece.last:
            yield m.vocab * m.hidden
        for _ in range(piece.layers):
            yield from layer
        if piece.first:
            yield m.vocab * m.hidden
