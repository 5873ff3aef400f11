"""Train a library's model on random inputs: ``python -m stepsight.run.library.step JSON``.

A step draws inputs on the device, runs the model with fused attention allowed, takes the library's loss, goes
backward, steps torch's Adam and clears the gradients.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from stepsight.errors import StepsightError
from stepsight.run.library.build import Built, Sizes, build, recompute
from stepsight.run.library.cards import card

PRECISIONS = ("FP", "MP", "HP")
_FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """A row of a measured table; FP is fp32, MP fp32 under fp16 autocast, HP fp16 throughout."""

    model: str
    batch: int
    sequence: int = -1
    image: int = -1
    precision: str = "FP"
    checkpointing: bool = False
    steps: int = 5
    configs: str = ""


def train(asked: Asked) -> None:
    dtype = torch.float16 if asked.precision == "HP" else torch.float32
    sizes = Sizes(asked.batch, asked.sequence, asked.image, dtype)
    found = card(asked.model, Path(asked.configs) if asked.configs else None)
    with torch.device("cuda"):
        built = build(found, sizes)
    model = built.model.to(dtype=dtype)
    optimizer = _optimizer(built, model)
    if asked.checkpointing and not recompute(model, found.checkpoint):
        raise StepsightError(
            f"model {asked.model}: no blocks were found whose activations could be recomputed"
        )
    print(f"{asked.model}: {built.described}", file=sys.stderr)
    mixed = asked.precision == "MP"
    cast: Any = torch.autocast("cuda", dtype=torch.float16) if mixed else contextlib.nullcontext()
    for _ in range(asked.steps):
        with sdpa_kernel(_FUSED):
            with cast:
                loss = built.loss(model)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def _optimizer(built: Built, model: torch.nn.Module) -> torch.optim.Optimizer:
    """timm's own maker leaves weight decay out; the others take it."""
    decay = 0.0 if built.described.startswith("timm") else 1e-4
    return torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=decay, eps=1e-6)


if __name__ == "__main__":
    try:
        train(msgspec.json.decode(sys.argv[1], type=Asked))
    except StepsightError as error:
        raise SystemExit(str(error)) from None
