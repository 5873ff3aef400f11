"""GPT-2: Conv1D projections, written-out gelu, tied head."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from stepsight.run.models.attention import attend, fused, merge_heads, scaled_scores, split_heads
from stepsight.workload.transformers.config import TransformerConfig


class Conv1D(nn.Module):  # type: ignore[misc]
    """A linear layer whose weight is in × out."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(into, out) * 0.02)
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], self.weight.shape[1])


def gelu_new(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Block(nn.Module):  # type: ignore[misc]
    """Pre-norm decoder block."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        h = c.hidden
        self.heads, self.dropout, self.attention = c.heads, c.training.dropout, c.training.attention
        self.ln_1, self.c_attn, self.c_proj = nn.LayerNorm(h), Conv1D(h, 3 * h), Conv1D(h, h)
        self.ln_2, self.c_fc, self.mlp_proj = nn.LayerNorm(h), Conv1D(h, c.ffn), Conv1D(c.ffn, h)

    def forward(self, x: torch.Tensor, causal: torch.Tensor, lowest: torch.Tensor) -> torch.Tensor:
        parts = self.c_attn(self.ln_1(x)).split(x.shape[-1], 2)
        q, k, v = (split_heads(part, self.heads) for part in parts)
        if self.attention == "flash":
            context = fused(q, k, v, causal=True)
        else:
            scores = torch.where(causal, scaled_scores(q, k), lowest)
            context = merge_heads(attend(scores, v, self.dropout))
        x = functional.dropout(self.c_proj(context), self.dropout) + x
        update = self.mlp_proj(gelu_new(self.c_fc(self.ln_2(x))))
        return functional.dropout(update, self.dropout) + x


class Gpt2(nn.Module):  # type: ignore[misc]
    """Token and position embeddings, decoder blocks, logits by the token embedding."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.config = c
        self.wte, self.wpe = nn.Embedding(c.vocab, c.hidden), nn.Embedding(c.sequence, c.hidden)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.ln_f = nn.LayerNorm(c.hidden)
        n = c.sequence
        self.register_buffer("positions", torch.arange(n)[None], persistent=False)
        self.register_buffer("causal", torch.ones(1, 1, n, n, dtype=torch.bool).tril(), persistent=False)
        self.register_buffer("lowest", torch.tensor(torch.finfo(torch.float32).min), persistent=False)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(self.positions)
        x = functional.dropout(x, self.config.training.dropout)
        for block in self.blocks:
            x = block(x, self.causal, self.lowest)
        return lm_loss(self.config, self.ln_f(x), self.wte.weight, target)


def lm_loss(
    c: TransformerConfig, x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """Logits and the cross entropy of the next token."""
    if c.head == "none":
        return x
    logits = functional.linear(x, weight)
    if c.training.loss == "none":
        return logits
    shifted = logits[:, :-1].contiguous()
    return functional.cross_entropy(shifted.view(-1, c.vocab), target[:, 1:].reshape(-1))
