"""Recurrent layers on a GPU are cuDNN's: one call for all time steps and layers, not one per cell.

A build without CUDA would take them apart into cells before the recorder sees them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""cudnnRNNMode_t."""


def install() -> None:
    for name, mode in MODES.items():
        setattr(torch._VF, name, _by_cudnn(getattr(torch._VF, name), mode))


def _by_cudnn(cells: Callable[..., Any], mode: int) -> Callable[..., Any]:
    def run(data: torch.Tensor, *args: Any) -> Any:
        if (
            not (isinstance(data, FakeTensor) and data.device.type == "cuda")
            or not torch.backends.cudnn.enabled
        ):
            return cells(data, *args)
        if isinstance(args[0], torch.Tensor) and isinstance(args[2], list | tuple):  # a packed sequence
            sizes, state, weights, bias, layers, dropout, train, both = args
            batch_sizes, batch_first = [int(n) for n in sizes.tolist()], False
        else:
            state, weights, bias, layers, dropout, train, both, batch_first = args
            batch_sizes = []
        if torch.is_autocast_enabled("cuda"):
            kind = torch.get_autocast_dtype("cuda")
            data, weights = data.to(kind), [w.to(kind) for w in weights]
            state = tuple(s.to(kind) for s in state) if mode == MODES["lstm"] else state.to(kind)
        hidden, cell = state if mode == MODES["lstm"] else (state, None)
        # cuDNN wants all weights in one buffer; nn.LSTM keeps them so, and it takes no memory of its own.
        out, hidden, cell, _, _ = torch._cudnn_rnn(
            data, weights, 4 if bias else 2, weights[0].detach(), hidden, cell, mode, hidden.shape[-1], 0,
            layers, batch_first, dropout, train, both, batch_sizes, None,
        )  # fmt: skip
        return (out, hidden, cell) if mode == MODES["lstm"] else (out, hidden)

    return run
