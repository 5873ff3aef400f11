"""The transformers that really train here: the description that is recorded for predictions, run by torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.eager.build import MODELS
from stepsight.workload.operators.tape import Tape


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As Llama's module writes it, in fp32."""
    wide = x.float()
    variance = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(variance + 1e-6)).to(x.dtype)


def scalar(name: str, x: torch.Tensor, value: float) -> torch.Tensor:
    result: torch.Tensor = getattr(torch, name)(x, value)
    return result


def narrow(x: torch.Tensor, dim: int, size: int, start: int = 0) -> torch.Tensor:
    """As an index writes it: ``x[:, start : start + size]``."""
    index = (*[slice(None)] * (dim % x.dim()), slice(start, start + size))
    return x[index]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "embedding": lambda weight, ids: functional.embedding(ids, weight),
    "linear": functional.linear,
    "addmm": torch.addmm,
    "matmul": torch.matmul,
    "einsum": torch.einsum,
    "flash_attention": lambda q, k, v, causal: functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal
    ),
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias),
    "rms_norm": rms_norm,
    "cross_entropy": functional.cross_entropy,
    "dropout": lambda x, share: functional.dropout(x, share) if share else x,
    "masked_fill": lambda x, mask, value: torch.where(mask, x, value),
    "index_select": lambda x, index: torch.index_select(x, x.dim() - 1, index),
    "add": torch.add,
    "mul": torch.mul,
    "negate": torch.neg,
    "scalar": scalar,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
    "silu": functional.silu,
    "view": torch.Tensor.view,
    "reshape": torch.Tensor.reshape,
    "contiguous": torch.Tensor.contiguous,
    "transpose": torch.transpose,
    "permute": torch.Tensor.permute,
    "expand": torch.Tensor.expand,
    "unsqueeze": torch.unsqueeze,
    "split": lambda x, sizes, dim, _: torch.split(x, sizes[0], dim),
    "narrow": narrow,
    "cat": torch.cat,
}
"""What runs in place of a tape's operators."""


def _angles(shape: tuple[int, ...]) -> torch.Tensor:
    frequencies = 1e4 ** -torch.linspace(0, 1, shape[-1] // 2)
    angles = torch.outer(torch.arange(shape[-2]).float(), frequencies)
    return torch.cat([angles, angles], -1)[None, None]


_LOWEST = torch.finfo(torch.float32).min
BUFFERS: Mapping[str, Callable[[tuple[int, ...]], torch.Tensor]] = {
    "places": lambda shape: torch.arange(shape[1])[None],
    "types": lambda shape: torch.zeros(shape, dtype=torch.int64),
    "padding": torch.zeros,
    "future": lambda shape: torch.full(shape, _LOWEST).triu(1),
    "past": lambda shape: torch.ones(shape, dtype=torch.bool).tril(),
    "lowest": lambda shape: torch.full(shape, _LOWEST),
    "cos": lambda shape: _angles(shape).cos(),
    "sin": lambda shape: _angles(shape).sin(),
    "relative": torch.randn,
    "index": lambda shape: torch.arange(shape[0]),
}
"""Constants of the models by name."""


class _Running(Tape):
    """Gives a description torch's functions, parameters that a module holds, and its batch."""

    functions = FUNCTIONS

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.held: dict[str, torch.Tensor] = {}

    def parameter(self, name: str, *shape: int) -> Any:
        """Random weights; norms start at one, biases at zero."""
        start = float(name.endswith(".weight"))
        made = nn.Parameter(torch.randn(shape) * 0.02 if len(shape) > 1 else torch.full(shape, start))
        self.module.register_parameter(name.replace(".", "_"), made)
        return made

    def buffer(self, name: str, shape: tuple[int, ...], dtype: str = "") -> Any:
        """The batch, or a constant made when it is first asked for."""
        if name not in self.held:
            self.held[name] = BUFFERS[name](shape).to(self.held["ids"].device)
        return self.held[name]


class Transformer(nn.Module):  # type: ignore[misc]
    """A family's description as a module."""

    def __init__(self, c: LanguageConfig) -> None:
        super().__init__()
        self.tape = _Running(self)
        self.run: Callable[[], Any] = MODELS[c.family](self.tape, c)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss, or the last output."""
        self.tape.held |= {"ids": ids, "target": target}
        out: torch.Tensor = self.run()
        return out
