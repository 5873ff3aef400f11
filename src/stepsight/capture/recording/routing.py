"""Routing to experts: what is known of masks and counts whose values only a GPU would compute.

A one-hot mask of n classes selects one element in n; counting tokens by expert gives each its share. Both are
followed through views and comparisons, so that every expert gets tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from stepsight.capture.recording.facts import tensors_in

SHARE = "_stepsight_share"
_FOLLOWED_NAMES = """
    view _unsafe_view reshape t transpose permute expand slice select squeeze unsqueeze detach alias clone
    unbind split index index_select _to_copy gt ne eq bool flatten contiguous _reshape_alias narrow movedim
"""
FOLLOWED = frozenset(_FOLLOWED_NAMES.split())


def install() -> None:
    """Results of one_hot carry the share of their elements that are set."""
    real = torch.nn.functional.one_hot

    def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        out: torch.Tensor = real(tensor, num_classes)
        if isinstance(out, FakeTensor) and num_classes > 0:
            setattr(out, SHARE, 1.0 / num_classes)
        return out

    torch.nn.functional.one_hot = one_hot
    torch._C._nn.one_hot = one_hot


def follow(name: str, args: Any, out: Any) -> None:
    """A view or comparison of a mask selects as the mask does; a sum over it is positive everywhere."""
    share = next((s for t in tensors_in(args) if (s := getattr(t, SHARE, None)) is not None), None)
    if share is None or not (name in FOLLOWED or name == "sum"):
        return
    for t in tensors_in(out):
        if isinstance(t, FakeTensor):
            setattr(t, SHARE, 1.0 if name == "sum" else share)


def share_of(tensor: torch.Tensor) -> float | None:
    share: float | None = getattr(tensor, SHARE, None)
    return share


def counts(total: int, classes: int, balance: float) -> torch.Tensor:
    """``total`` tokens over ``classes`` experts; the first gets ``balance`` times the mean."""
    first = min(round(total / classes * balance), total)
    rest = max(classes - 1, 1)
    left = total - first if classes > 1 else 0
    shares = [first if classes > 1 else total]
    shares += [left // rest + (i < left % rest) for i in range(classes - 1)]
    return torch.tensor(shares, dtype=torch.int64)
