"""GPT with linear layers, and OPT: pre-norm decoders with a tied head."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from stepsight.run.models.attention import attend, fused, merge_heads, scaled_scores, split_heads
from stepsight.run.models.gpt2 import lm_loss
from stepsight.workload.transformers.config import TransformerConfig


class GptBlock(nn.Module):  # type: ignore[misc]
    """One projection for query, key and value (GPT), or three (OPT)."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        h = c.hidden
        self.config = c
        self.first_norm = nn.LayerNorm(h)
        widths = (h, h, h) if c.family == "opt" else (3 * h,)
        self.qkv = nn.ModuleList(nn.Linear(h, width) for width in widths)
        self.attention_out, self.second_norm = nn.Linear(h, h), nn.LayerNorm(h)
        self.fc, self.fc_out = nn.Linear(h, c.ffn), nn.Linear(c.ffn, h)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        c, p = self.config, self.config.training.dropout
        y = self.first_norm(x)
        parts = [projection(y) for projection in self.qkv]
        if len(parts) == 1:
            parts = parts[0].split(x.shape[-1], 2)
        q, k, v = (split_heads(part, c.heads) for part in parts)
        if c.training.attention == "flash":
            context = fused(q, k, v, causal=True)
        else:
            context = merge_heads(attend(scaled_scores(q, k) + mask, v, p))
        x = functional.dropout(self.attention_out(context), p) + x
        activation = functional.relu if c.family == "opt" else functional.gelu
        hidden = activation(self.fc(self.second_norm(x)))
        return functional.dropout(self.fc_out(hidden), p) + x


class Gpt(nn.Module):  # type: ignore[misc]
    """Token and position embeddings, decoder blocks, logits by the token embedding."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.config = c
        n = c.sequence
        self.tokens, self.position = nn.Embedding(c.vocab, c.hidden), nn.Embedding(n, c.hidden)
        self.blocks = nn.ModuleList(GptBlock(c) for _ in range(c.layers))
        self.last_norm = nn.LayerNorm(c.hidden)
        self.register_buffer("positions", torch.arange(n)[None], persistent=False)
        future = torch.full((1, 1, n, n), torch.finfo(torch.float32).min).triu(1)
        self.register_buffer("mask", future, persistent=False)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.position(self.positions)
        x = functional.dropout(x, self.config.training.dropout)
        for block in self.blocks:
            x = block(x, self.mask)
        return lm_loss(self.config, self.last_norm(x), self.tokens.weight, target)
