"""Attention cores that the transformer modules share."""

from __future__ import annotations

import math

import torch
from torch.nn import functional


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """batch × sequence × hidden as batch × heads × sequence × head_dim."""
    batch, sequence, hidden = x.shape
    return x.view(batch, sequence, heads, hidden // heads).transpose(1, 2)


def scaled_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])


def attend(scores: torch.Tensor, v: torch.Tensor, dropout: float) -> torch.Tensor:
    """softmax, dropout, product with the values."""
    return torch.matmul(functional.dropout(torch.softmax(scores, -1), dropout), v)


def merge_heads(context: torch.Tensor) -> torch.Tensor:
    batch, heads, sequence, dim = context.shape
    return context.permute(0, 2, 1, 3).contiguous().view(batch, sequence, heads * dim)


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """scaled_dot_product_attention, merged back to batch × sequence × hidden."""
    context = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return context.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)
