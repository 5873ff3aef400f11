"""Llama: RMS norm, rotary positions, grouped-query attention, SwiGLU."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from stepsight.run.models.gpt2 import lm_loss
from stepsight.workload.transformers.config import TransformerConfig


class RmsNorm(nn.Module):  # type: ignore[misc]
    """x / rms(x), computed in fp32, times a weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(variance + 1e-6)).to(x.dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    straight = x * cos
    first, second = x[..., :half], x[..., half:]
    return straight + torch.cat((-second, first), -1) * sin


def repeated(x: torch.Tensor, heads: int) -> torch.Tensor:
    batch, kv_heads, sequence, dim = x.shape
    if kv_heads == heads:
        return x
    wide = x[:, :, None].expand(batch, kv_heads, heads // kv_heads, sequence, dim)
    return wide.reshape(batch, heads, sequence, dim)


class LlamaLayer(nn.Module):  # type: ignore[misc]
    """Attention and SwiGLU, both pre-norm."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.config = c
        h, f, kv = c.hidden, c.ffn, c.kv_heads * c.head_dim
        self.q, self.k, self.v, self.o = (nn.Linear(h, n, bias=False) for n in (h, kv, kv, h))
        self.gate, self.up = nn.Linear(h, f, bias=False), nn.Linear(h, f, bias=False)
        self.down = nn.Linear(f, h, bias=False)
        self.input_norm, self.post_norm = RmsNorm(h), RmsNorm(h)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        x = x + self._attention(self.input_norm(x), cos, sin, mask)
        y = self.post_norm(x)
        out: torch.Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return out

    def _attention(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        c = self.config
        batch, sequence, _ = x.shape
        q = self.q(x).view(batch, sequence, c.heads, -1).transpose(1, 2)
        k = self.k(x).view(batch, sequence, c.kv_heads, -1).transpose(1, 2)
        v = self.v(x).view(batch, sequence, c.kv_heads, -1).transpose(1, 2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = repeated(k, c.heads), repeated(v, c.heads)
        if c.training.attention == "flash":
            context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = torch.matmul(q, k.transpose(2, 3)) * c.head_dim**-0.5 + mask
            context = torch.matmul(functional.dropout(torch.softmax(scores, -1), c.training.dropout), v)
        out: torch.Tensor = self.o(context.transpose(1, 2).contiguous().reshape(batch, sequence, -1))
        return out


class Llama(nn.Module):  # type: ignore[misc]
    """Token embedding, layers, norm, untied head."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.config = c
        self.tokens = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList(LlamaLayer(c) for _ in range(c.layers))
        self.norm = RmsNorm(c.hidden)
        self.lm_head = nn.Linear(c.hidden, c.vocab, bias=False) if c.head == "lm" else None
        n = c.sequence
        angles = torch.outer(torch.arange(n).float(), 1e4 ** -torch.linspace(0, 1, c.head_dim // 2))
        angles = torch.cat([angles, angles], -1)[None, None]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        future = torch.full((1, 1, n, n), torch.finfo(torch.float32).min).triu(1)
        self.register_buffer("mask", future, persistent=False)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.mask)
        x = self.norm(x)
        return x if self.lm_head is None else lm_loss(self.config, x, self.lm_head.weight, target)
