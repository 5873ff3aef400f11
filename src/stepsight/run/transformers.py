"""The transformers that really train here: the description that is recorded for predictions, run by torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stepsight.run.functions import Buffers, Running
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.eager.build import MODELS


def _angles(shape: tuple[int, ...]) -> torch.Tensor:
    frequencies = 1e4 ** -torch.linspace(0, 1, shape[-1] // 2)
    angles = torch.outer(torch.arange(shape[-2]).float(), frequencies)
    return torch.cat([angles, angles], -1)[None, None]


_LOWEST = torch.finfo(torch.float32).min
BUFFERS: Buffers = {
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


class Transformer(nn.Module):  # type: ignore[misc]
    """A family's description as a module."""

    def __init__(self, c: LanguageConfig, device: str) -> None:
        super().__init__()
        self.tape = Running(self, device, BUFFERS)
        self.run: Callable[[], Any] = MODELS[c.family](self.tape, c)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss, or the last output."""
        self.tape.held |= {"ids": ids, "target": target}
        out: torch.Tensor = self.run()
        return out
