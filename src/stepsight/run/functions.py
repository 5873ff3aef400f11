"""A tape that really computes: torch's functions in place of those that are only recorded for predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

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


def split(x: torch.Tensor, sizes: Sequence[int], dim: int, name: str = "") -> tuple[torch.Tensor, ...]:
    """Into parts of one size, or of these."""
    parts: tuple[torch.Tensor, ...] = torch.split(x, sizes[0] if name == "aten::split" else list(sizes), dim)
    return parts


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "embedding": lambda weight, ids: functional.embedding(ids, weight),
    "linear": functional.linear,
    "addmm": torch.addmm,
    "matmul": torch.matmul,
    "bmm": torch.bmm,
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
    "split": split,
    "narrow": narrow,
    "cat": torch.cat,
}
"""What runs in place of a tape's operators."""


Buffers = Mapping[str, Callable[[tuple[int, ...]], torch.Tensor]]


class Running(Tape):
    """Gives a description torch's functions, parameters that a module holds, and its batch."""

    functions = FUNCTIONS

    def __init__(self, module: nn.Module, place: str | torch.device, buffers: Buffers | None = None) -> None:
        super().__init__()
        self.place = place
        self.module, self.made_by = module, buffers or {}
        self.held: dict[str, torch.Tensor] = {}

    def parameter(self, name: str, *shape: int) -> Any:
        """Random weights; norms start at one, biases at zero."""
        start = float(name.endswith(".weight"))
        values = torch.randn(shape) * 0.02 if len(shape) > 1 else torch.full(shape, start)
        made = nn.Parameter(values.to(self.place))
        self.module.register_parameter(name.replace(".", "_"), made)
        return made

    def buffer(self, name: str, shape: tuple[int, ...], dtype: str = "") -> Any:
        """The batch, or a constant made when it is first asked for."""
        if name not in self.held:
            self.held[name] = self.made_by[name](shape).to(self.place)
        return self.held[name]
