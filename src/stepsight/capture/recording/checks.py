"""Checks that a healthy run passes: numbers are finite, distributions' parameters are valid.

Their outcome is computed on the GPU, and scripts act on it: skip a step, raise an error. A mask that is known
to be all true or all false says so by its share (`routing.SHARE`), through ``all``, ``any`` and ``not``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from stepsight.capture.recording.facts import tensors_in
from stepsight.capture.recording.routing import SHARE

_FINITE = {"isfinite": 1.0, "isreal": 1.0, "isnan": 0.0, "isinf": 0.0, "isneginf": 0.0, "isposinf": 0.0}
_BOTH = frozenset(
    ("logical_and", "logical_and_", "bitwise_and", "bitwise_and_", "__and__", "mul", "__iand__")
)


def install() -> None:
    """Results of checks carry what a healthy run gives."""
    for name, share in _FINITE.items():
        for owner in (torch, torch.Tensor):
            if hasattr(owner, name):
                setattr(owner, name, _marked(getattr(owner, name), share))
    from torch.distributions import constraints

    for kind in _below(constraints.Constraint):
        if "check" in vars(kind):
            kind.check = _marked(kind.check, 1.0)


def _below(kind: Any) -> list[Any]:
    return [kind, *(each for sub in kind.__subclasses__() for each in _below(sub))]


def _marked(function: Callable[..., Any], share: float) -> Callable[..., Any]:
    def check(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        if isinstance(out, FakeTensor):
            setattr(out, SHARE, share)
        return out

    return check


def follow(name: str, args: Any, out: Any) -> None:
    """What is known of a mask that came from others."""
    if not isinstance(out, FakeTensor) or out.dtype != torch.bool:
        return
    masks = list(tensors_in(args))
    shares = [getattr(t, SHARE, None) for t in masks]
    if name == "eq" and len(masks) == 2 and masks[0] is masks[1]:
        setattr(out, SHARE, 1.0)
        return
    if not shares or any(s is None for s in shares):
        return
    known = [float(s) for s in shares if s is not None]
    if name in ("logical_not", "bitwise_not"):
        setattr(out, SHARE, 1.0 - known[0])
    elif name in ("all", "_is_all_true"):
        setattr(out, SHARE, float(known[0] >= 1))
    elif name in ("any", "_is_any_true"):
        setattr(out, SHARE, float(known[0] > 0))
    elif name in _BOTH:
        setattr(out, SHARE, min(known))
