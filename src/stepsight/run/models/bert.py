"""BERT with a masked-language-model head."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from stepsight.run.models.attention import attend, fused, merge_heads, scaled_scores, split_heads
from stepsight.workload.transformers.config import TransformerConfig


class BertLayer(nn.Module):  # type: ignore[misc]
    """Post-norm encoder layer."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        h = c.hidden
        self.heads, self.dropout, self.attention = c.heads, c.training.dropout, c.training.attention
        self.query, self.key, self.value = nn.Linear(h, h), nn.Linear(h, h), nn.Linear(h, h)
        self.attention_out, self.attention_norm = nn.Linear(h, h), nn.LayerNorm(h)
        self.intermediate, self.output = nn.Linear(h, c.ffn), nn.Linear(c.ffn, h)
        self.output_norm = nn.LayerNorm(h)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(f(x), self.heads) for f in (self.query, self.key, self.value))
        if self.attention == "flash":
            context = fused(q, k, v, causal=False)
        else:
            context = merge_heads(attend(scaled_scores(q, k) + mask, v, self.dropout))
        x = self.attention_norm(functional.dropout(self.attention_out(context), self.dropout) + x)
        update = self.output(functional.gelu(self.intermediate(x)))
        out: torch.Tensor = self.output_norm(functional.dropout(update, self.dropout) + x)
        return out


class BertHead(nn.Module):  # type: ignore[misc]
    """Transform, norm, and logits by the word embedding."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(c.vocab))
        self.transform, self.norm = nn.Linear(c.hidden, c.hidden), nn.LayerNorm(c.hidden)

    def forward(self, x: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.norm(functional.gelu(self.transform(x))), word, self.bias)


class Bert(nn.Module):  # type: ignore[misc]
    """Embeddings, encoder, and (with a head) tied logits over the vocabulary."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.config = c
        self.word = nn.Embedding(c.vocab, c.hidden)
        self.position = nn.Embedding(c.sequence, c.hidden)
        self.token_type = nn.Embedding(2, c.hidden)
        self.embedding_norm = nn.LayerNorm(c.hidden)
        self.layers = nn.ModuleList(BertLayer(c) for _ in range(c.layers))
        if c.head == "lm":
            self.head = BertHead(c)
        self.register_buffer("positions", torch.arange(c.sequence)[None], persistent=False)
        self.register_buffer("mask", torch.zeros(c.batch_per_rank, 1, 1, c.sequence), persistent=False)
        self.register_buffer(
            "types", torch.zeros(c.batch_per_rank, c.sequence, dtype=torch.int64), persistent=False
        )

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        c = self.config
        x = self.word(ids) + self.token_type(self.types)
        x = x + self.position(self.positions)
        x = functional.dropout(self.embedding_norm(x), c.training.dropout)
        for layer in self.layers:
            x = layer(x, self.mask)
        if c.head == "none":
            return x
        logits = self.head(x, self.word.weight)
        if c.training.loss == "none":
            return logits
        return functional.cross_entropy(logits.view(-1, c.vocab), target.view(-1))
