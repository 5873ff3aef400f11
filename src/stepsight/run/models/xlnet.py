"""XLNet without segments or memory: relative attention by einsum, sequence first."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from stepsight.workload.transformers.config import TransformerConfig


def relative_shift(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Scores by relative position turned into scores by absolute position."""
    batch, heads, rows, cols = x.shape
    x = x.reshape(batch, heads, cols, rows)[:, :, 1:, :]
    return torch.index_select(x.reshape(batch, heads, rows, cols - 1), 3, index)


class XlnetLayer(nn.Module):  # type: ignore[misc]
    """Relative attention and feed-forward, both post-norm."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        h, n, d = c.hidden, c.heads, c.head_dim
        self.dropout, self.scale = c.training.dropout, d**-0.5
        for name in "qkvor":
            self.register_parameter(name, nn.Parameter(torch.randn(h, n, d) * 0.02))
        for name in ("r_r_bias", "r_w_bias"):
            self.register_parameter(name, nn.Parameter(torch.zeros(n, d)))
        self.attention_norm, self.output_norm = nn.LayerNorm(h), nn.LayerNorm(h)
        self.layer_1, self.layer_2 = nn.Linear(h, c.ffn), nn.Linear(c.ffn, h)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        p = self.dropout
        q, k, v = (torch.einsum("ibh,hnd->ibnd", x, w) for w in (self.q, self.k, self.v))
        r = torch.einsum("ibh,hnd->ibnd", positions, self.r)
        content = torch.einsum("ibnd,jbnd->bnij", q + self.r_w_bias, k)
        place = torch.einsum("ibnd,jbnd->bnij", q + self.r_r_bias, r)
        scores = (content + relative_shift(place, index) + 0) * self.scale
        context = torch.einsum("bnij,jbnd->ibnd", functional.dropout(torch.softmax(scores, 3), p), v)
        update = functional.dropout(torch.einsum("ibnd,hnd->ibh", context, self.o), p)
        x = self.attention_norm(update + x)
        inner = functional.dropout(functional.gelu(self.layer_1(x)), p)
        out: torch.Tensor = self.output_norm(functional.dropout(self.layer_2(inner), p) + x)
        return out


class Xlnet(nn.Module):  # type: ignore[misc]
    """Word embedding, layers over fixed relative positions, tied logits with a bias."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.config = c
        self.word = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList(XlnetLayer(c) for _ in range(c.layers))
        self.lm_loss = XlnetHead(c) if c.head == "lm" else None
        self.register_buffer("positions", torch.randn(2 * c.sequence, 1, c.hidden), persistent=False)
        self.register_buffer("index", torch.arange(c.sequence), persistent=False)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        c, p = self.config, self.config.training.dropout
        x = functional.dropout(self.word(ids.transpose(0, 1).contiguous()), p)
        positions = functional.dropout(self.positions.expand(-1, ids.shape[0], -1), p)
        for layer in self.layers:
            x = layer(x, positions, self.index)
        x = functional.dropout(x, p).permute(1, 0, 2).contiguous()
        if self.lm_loss is None:
            return x
        logits = functional.linear(x, self.word.weight, self.lm_loss.bias)
        if c.training.loss == "none":
            return logits
        return functional.cross_entropy(logits.view(-1, c.vocab), target.view(-1))


class XlnetHead(nn.Module):  # type: ignore[misc]
    """The bias of the tied logits."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(c.vocab))
