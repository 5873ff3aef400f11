"""The transformers that really train here: BERT, GPT, GPT-2, Llama and XLNet as plain torch modules, with the
operators that the rank programs list, in the same order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn import functional

from stepsight.workload.llm.eager.config import TransformerConfig

Masking = Callable[[torch.Tensor], torch.Tensor]


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """batch × sequence × hidden as batch × heads × sequence × head_dim."""
    batch, sequence, _ = x.shape
    return x.view(batch, sequence, heads, -1).transpose(1, 2)


def attention(
    c: TransformerConfig, x: torch.Tensor, heads: Iterable[torch.Tensor], masked: Masking, *, causal: bool
) -> torch.Tensor:
    """Of queries, keys and values by head, merged back to batch × sequence × hidden."""
    q, k, v = heads
    if c.training.attention == "flash":
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return context.transpose(1, 2).reshape(x.shape)
    scores = masked(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1]))
    context = torch.matmul(functional.dropout(torch.softmax(scores, -1), c.training.dropout), v)
    return context.permute(0, 2, 1, 3).contiguous().view(x.shape)


def cross_entropy(
    c: TransformerConfig, logits: torch.Tensor, target: torch.Tensor, *, shifted: bool
) -> torch.Tensor:
    """Of every token, or of the next one; the logits where the description has no loss."""
    if c.training.loss == "none":
        return logits
    if not shifted:
        return functional.cross_entropy(logits.view(-1, c.vocab), target.view(-1))
    next_one = logits[:, :-1].contiguous()
    return functional.cross_entropy(next_one.view(-1, c.vocab), target[:, 1:].reshape(-1))


def future_mask(length: int) -> torch.Tensor:
    return torch.full((1, 1, length, length), torch.finfo(torch.float32).min).triu(1)


class BertLayer(nn.Module):  # type: ignore[misc]
    """Post-norm encoder layer."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        h = c.hidden
        self.config = c
        self.query, self.key, self.value = nn.Linear(h, h), nn.Linear(h, h), nn.Linear(h, h)
        self.attention_out, self.attention_norm = nn.Linear(h, h), nn.LayerNorm(h)
        self.intermediate, self.output = nn.Linear(h, c.ffn), nn.Linear(c.ffn, h)
        self.output_norm = nn.LayerNorm(h)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        p = self.config.training.dropout
        heads = (split_heads(f(x), self.config.heads) for f in (self.query, self.key, self.value))
        context = attention(self.config, x, heads, lambda scores: scores + mask, causal=False)
        x = self.attention_norm(functional.dropout(self.attention_out(context), p) + x)
        update = self.output(functional.gelu(self.intermediate(x)))
        out: torch.Tensor = self.output_norm(functional.dropout(update, p) + x)
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
        types = torch.zeros(c.batch_per_rank, c.sequence, dtype=torch.int64)
        self.register_buffer("positions", torch.arange(c.sequence)[None], persistent=False)
        self.register_buffer("mask", torch.zeros(c.batch_per_rank, 1, 1, c.sequence), persistent=False)
        self.register_buffer("types", types, persistent=False)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        c = self.config
        x = self.word(ids) + self.token_type(self.types)
        x = x + self.position(self.positions)
        x = functional.dropout(self.embedding_norm(x), c.training.dropout)
        for layer in self.layers:
            x = layer(x, self.mask)
        if c.head == "none":
            return x
        return cross_entropy(c, self.head(x, self.word.weight), target, shifted=False)


class Conv1D(nn.Module):  # type: ignore[misc]
    """GPT-2's linear layer, whose weight is in × out."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(into, out) * 0.02)
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], self.weight.shape[1])


def gelu_new(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"opt": functional.relu, "gpt2": gelu_new}


class GptBlock(nn.Module):  # type: ignore[misc]
    """Pre-norm decoder block: one projection for query, key and value (GPT, GPT-2), or three (OPT)."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        h, linear = c.hidden, Conv1D if c.family == "gpt2" else nn.Linear
        self.config = c
        self.first_norm = nn.LayerNorm(h)
        self.qkv = nn.ModuleList(linear(h, n) for n in ((h, h, h) if c.family == "opt" else (3 * h,)))
        self.attention_out, self.second_norm = linear(h, h), nn.LayerNorm(h)
        self.fc, self.fc_out = linear(h, c.ffn), linear(c.ffn, h)
        self.activation = ACTIVATIONS.get(c.family, functional.gelu)

    def forward(self, x: torch.Tensor, masked: Masking) -> torch.Tensor:
        p = self.config.training.dropout
        y = self.first_norm(x)
        parts = tuple(projection(y) for projection in self.qkv)
        if len(parts) == 1:
            parts = parts[0].split(x.shape[-1], 2)
        heads = (split_heads(part, self.config.heads) for part in parts)
        context = attention(self.config, x, heads, masked, causal=True)
        x = functional.dropout(self.attention_out(context), p) + x
        hidden = self.activation(self.fc(self.second_norm(x)))
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
        if c.family == "gpt2":
            past, lowest = torch.ones(1, 1, n, n, dtype=torch.bool).tril(), torch.finfo(torch.float32).min
            self.register_buffer("past", past, persistent=False)
            self.register_buffer("lowest", torch.tensor(lowest), persistent=False)
        else:
            self.register_buffer("future", future_mask(n), persistent=False)

    def masked(self, scores: torch.Tensor) -> torch.Tensor:
        """GPT-2 selects, the others add."""
        if self.config.family == "gpt2":
            return torch.where(self.past, scores, self.lowest)
        return scores + self.future

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        c = self.config
        x = self.tokens(ids) + self.position(self.positions)
        x = functional.dropout(x, c.training.dropout)
        for block in self.blocks:
            x = block(x, self.masked)
        x = self.last_norm(x)
        if c.head == "none":
            return x
        return cross_entropy(c, functional.linear(x, self.tokens.weight), target, shifted=True)


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
        q = split_heads(self.q(x), c.heads)
        k, v = (split_heads(project(x), c.kv_heads) for project in (self.k, self.v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = repeated(k, c.heads), repeated(v, c.heads)
        if c.training.attention == "flash":
            context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = torch.matmul(q, k.transpose(2, 3)) * c.head_dim**-0.5 + mask
            context = torch.matmul(functional.dropout(torch.softmax(scores, -1), c.training.dropout), v)
        out: torch.Tensor = self.o(context.transpose(1, 2).contiguous().reshape(*x.shape[:2], -1))
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
        self.register_buffer("mask", future_mask(n), persistent=False)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.mask)
        x = self.norm(x)
        return (
            x if self.lm_head is None else cross_entropy(self.config, self.lm_head(x), target, shifted=True)
        )


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
        biases = [nn.Parameter(torch.zeros(c.vocab))] if c.head == "lm" else []
        self.biases = nn.ParameterList(biases)  # of the tied logits
        self.register_buffer("positions", torch.randn(2 * c.sequence, 1, c.hidden), persistent=False)
        self.register_buffer("index", torch.arange(c.sequence), persistent=False)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        c, p = self.config, self.config.training.dropout
        x = functional.dropout(self.word(ids.transpose(0, 1).contiguous()), p)
        positions = functional.dropout(self.positions.expand(-1, ids.shape[0], -1), p)
        for layer in self.layers:
            x = layer(x, positions, self.index)
        x = functional.dropout(x, p).permute(1, 0, 2).contiguous()
        if c.head == "none":
            return x
        return cross_entropy(c, functional.linear(x, self.word.weight, self.biases[0]), target, shifted=False)
