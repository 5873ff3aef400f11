"""How a model is cut into the pieces of a pipeline: which layers each of them holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepsight.workload.llm.config import LanguageConfig

ENDS = 2
"""Embedding and head: each may be a piece of its own."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Layers ``start`` to ``stop`` and, at the ends, the embedding and the head; ``encoder``: layers of an
    encoder, in front of them."""

    start: int
    stop: int
    first: bool
    last: bool
    encoder: int = 0

    @property
    def layers(self) -> int:
        """Those of the encoder, too."""
        return self.encoder + self.stop - self.start


def most_pieces(c: LanguageConfig) -> int:
    """A layer each, and the embedding and the head by themselves (Meta's Llama 3 405B: 126 layers in 128)."""
    return c.model.encoder_layers + c.model.layers + ENDS


def pieces(c: LanguageConfig) -> list[Piece]:
    """The model cut into stages times virtual stages, first piece first.

    nanotron weighs layers and head by their cost (`_by_cost`). Others cut evenly where that divides. Else, as
    Megatron does on request: where it divides with embedding and head counted as a layer each, both ends
    hold one layer less; otherwise the first piece holds the fewest, and the remainder goes to the pieces
    after it, one layer each (31 layers in 4 pieces: 7, 8, 8, 8, the embedding counted as a layer). An encoder
    and its decoder lie on pieces of their own (`_encoder_pieces`).
    """
    n, m = c.layout.chunks, c.model
    if n == 1:
        return [Piece(0, m.layers, True, True, m.encoder_layers)]
    if not m.encoder_layers:
        even = _before_mtp(m.layers, m.mtp_layers, n) if m.mtp_layers else _even(m.layers, n)
        counts = _by_cost(c) if c.framework.stages_by_cost else even
        return _one_behind_the_other([0] * n, counts)
    k = _encoder_pieces(c)
    return _one_behind_the_other(
        [*_shared_out(m.encoder_layers, k), *[0] * (n - k)], [*[0] * k, *_shared_out(m.layers, n - k)]
    )


def tensors_between(c: LanguageConfig) -> list[int]:
    """Hidden states that each stage sends to the next one; between stages of a decoder its encoder's output
    goes along."""
    parts = pieces(c)[: c.layout.pipeline]
    return [2 if c.model.encoder_layers and piece.stop > piece.start else 1 for piece in parts]


def _one_behind_the_other(encoder: list[int], counts: list[int]) -> list[Piece]:
    n = len(counts)
    starts = [sum(counts[:i]) for i in range(n + 1)]
    return [Piece(starts[i], starts[i + 1], i == 0, i == n - 1, encoder[i]) for i in range(n)]


def _even(layers: int, n: int) -> list[int]:
    if layers % n == 0:
        return [layers // n] * n
    if (layers + ENDS) % n == 0:
        each = (layers + ENDS) // n
        return [each - 1, *[each] * (n - 2), each - 1]
    return [layers // n + (0 < i <= layers % n) for i in range(n)]


def _before_mtp(layers: int, mtp_layers: int, n: int) -> list[int]:
    """The last piece also holds the layers that predict further tokens and a head for each, each counted as a
    layer: it gets as many ordinary ones as make the fullest piece the least full (Megatron's layouts of
    DeepSeek-V3: fifteen times 4 and 1 in 16 pieces; 1, thirty times 2 and 0 in 32)."""
    ends = 2 * mtp_layers + 1

    def fullest(last: int) -> int:
        return max(-(-(layers - last) // (n - 1)), last + ends)

    last = min(range(layers // n + 1), key=fullest)
    each, more = divmod(layers - last, n - 1)
    return [*(each + (0 < i <= more) for i in range(n - 1)), last]


def _shared_out(layers: int, n: int) -> list[int]:
    return [layers // n + (i < layers % n) for i in range(n)]


def _encoder_pieces(c: LanguageConfig) -> int:
    """Of the pieces, those that hold the encoder (Megatron's split rank): this many that the fullest piece
    costs the least. A layer of the decoder also attends to the encoder's output."""
    m, n = c.model, c.layout.chunks
    layer = m.attention_parameters + m.mlp_parameters
    ends = m.vocab * m.hidden

    def fullest(k: int) -> int:
        decoder = [x * (layer + m.attention_parameters) for x in _shared_out(m.layers, n - k)]
        decoder[-1] += ends
        return max(*decoder, *(x * layer for x in _shared_out(m.encoder_layers, k)))

    return min(range(1, n), key=fullest)


def _by_cost(c: LanguageConfig) -> list[int]:
    """nanotron's rule: blocks in order, the next stage once the running cost exceeds its share.

    A layer costs its parameters in products, the head its own, the embedding nothing.
    """
    m, n = c.model, c.layout.chunks
    layer = 4 * m.heads * m.head_dim * m.hidden + (3 if m.gated else 2) * m.ffn * m.hidden
    costs = [0, *[layer] * m.layers, 0, m.vocab * m.hidden]
    total, counts = sum(costs), [0] * n
    stage, running = 0, 0
    for i, cost in enumerate(costs):
        running += cost
        if 1 <= i <= m.layers:
            counts[stage] += 1
        if stage < n - 1 and running >= total * (stage + 1) / n:
            stage += 1
    return counts
