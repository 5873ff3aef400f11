"""What decoder-only families share: embeddings, the stack of blocks, and the language-model head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from stepsight.workload.llm.eager.blocks import buffer, embedding, norm, norm_pair
from stepsight.workload.llm.eager.config import StagePart, TransformerConfig
from stepsight.workload.operators.matmuls import linear
from stepsight.workload.operators.norms import cross_entropy
from stepsight.workload.operators.pointwise import add, dropout
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.operators.views import contiguous, narrow, reshape, view

Block = TypeVar("Block")


def decoder(
    tape: Tape, c: TransformerConfig, part: StagePart, register: Callable[[str], Block],
    run: Callable[[Block, Tensor], Tensor],
) -> Callable[[], Tensor]:  # fmt: skip
    """Registers a stage's parameters; the result runs its forward pass to the loss or the last output.

    ``register`` makes the parameters of the block of that name; ``run`` is one block's forward pass.
    """
    tokens = tape.parameter("tokens", c.vocab, c.hidden) if part.first or part.last else None
    positions = tape.parameter("positions", c.sequence, c.hidden) if part.first else None
    blocks = [register(f"block.{i}") for i in range(part.layers)]
    last_norm = norm_pair(tape, "last_norm", c.hidden) if part.last else None

    def forward() -> Tensor:
        x = token_embeddings(tape, c, tokens, positions)
        x = stack(tape, c, blocks, run, x)
        if last_norm is None or tokens is None:
            return x
        with tape.scope("head"):
            return lm_head(tape, c, norm(tape, x, last_norm), tokens)

    return forward


def stack(
    tape: Tape, c: TransformerConfig, blocks: list[Block], run: Callable[[Block, Tensor], Tensor], x: Tensor
) -> Tensor:
    """Block after block, each kept for the backward pass or run again there."""
    for i, block in enumerate(blocks):
        with tape.scope(f"block {i}"):
            x = kept_or_run_again(tape, c, partial(run, block), x)
    return x


def kept_or_run_again(
    tape: Tape, c: TransformerConfig, block: Callable[[Tensor], Tensor], x: Tensor
) -> Tensor:
    """One block, whose tensors the backward pass finds kept or makes again (``recompute``)."""
    return tape.checkpoint(block, x) if c.training.recompute else block(x)


def token_embeddings(
    tape: Tape, c: TransformerConfig, tokens: Tensor | None, positions: Tensor | None
) -> Tensor:
    """Token plus position; a later pipeline stage (without ``positions``) receives its input instead."""
    with tape.scope("embeddings"):
        if tokens is None or positions is None:
            return tape.received(c.batch_per_rank, c.sequence, c.hidden)
        ids = buffer((c.batch_per_rank, c.sequence), "int64")
        place = buffer((1, c.sequence), "int64")
        x = add(tape, embedding(tape, tokens, ids), embedding(tape, positions, place))
        return dropout(tape, x, c.training.dropout)


def lm_head(tape: Tape, c: TransformerConfig, x: Tensor, weight: Tensor) -> Tensor:
    """Logits over the vocabulary, shifted by one token, and their cross entropy."""
    if c.head == "none":
        return x
    logits = linear(tape, x, weight)
    if c.training.loss == "none":
        return logits
    shifted = contiguous(tape, narrow(tape, logits, 1, c.sequence - 1))
    flat = view(tape, shifted, -1, c.vocab)
    target = narrow(tape, buffer((c.batch_per_rank, c.sequence), "int64"), 1, c.sequence - 1)
    return cross_entropy(tape, flat, reshape(tape, target, -1))
