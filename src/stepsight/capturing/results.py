"""Results as a GPU leaves them where torch's fake tensors do not say: memory formats of convolutions,
operators that cannot run without data.

A torch built without cuDNN makes every convolution's result contiguous, and all that follows would be laid
out as on no GPU. A loss or an operator of an extension may have a kernel for the CPU and no rule for sizes:
what it computes there is thrown away.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from stepsight.capturing.calls import Facts, mapped, tensors_in
from stepsight.capturing.values import Values
from stepsight.program.aten.images import is_channels_last

_IMAGE_AND_WEIGHT = {"convolution": (0, 1), "convolution_backward": (1, 2)}


def as_on_gpu(name: str, args: Any, out: Any, facts: Facts) -> Any:
    """Results of a convolution on the GPU, channels_last where the image or the weight is."""
    places = _IMAGE_AND_WEIGHT.get(name)
    if places is None or len(args) <= max(places):
        return out
    image, weight = (args[place] for place in places)
    if not isinstance(image, FakeTensor) or image.fake_device.type != "cuda":
        return out
    if not any(is_channels_last(facts.tensor(t)) for t in (image, weight)):
        return out
    if isinstance(out, torch.Tensor):
        return _last(out)
    return tuple(_last(t) for t in out)


def _last(t: torch.Tensor | None) -> torch.Tensor | None:
    return t if t is None or t.dim() != 4 else t.to(memory_format=torch.channels_last)


MOST_BYTES = 1 << 28
"""Larger inputs are not made for this."""

MIXED = frozenset(("aten::_ctc_loss", "aten::_ctc_loss_backward"))
"""They take lengths from the host together with tensors of the GPU, which torch's fake tensors refuse."""


def by_rule(name: str, args: Any) -> Any:
    """Results of operators that only GPUs have, without data; None without a rule. Runs in fake mode."""
    if name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"):
        return False
    if name == "_thnn_fused_gru_cell":
        hidden = args[2]
        return torch.empty_like(hidden), hidden.new_empty(hidden.shape[0], 5 * hidden.shape[1])
    if name == "_thnn_fused_gru_cell_backward":
        grad, biases = args[0], args[2]
        gates = [grad.new_empty(grad.shape[0], 3 * grad.shape[1]) for _ in range(2)]
        bias = [grad.new_empty(3 * grad.shape[1]) if biases else None for _ in range(2)]
        return *gates, torch.empty_like(grad), *bias
    if name == "_cudnn_rnn_backward":
        data, weights, hidden, cell = args[0], args[1], args[4], args[5]
        state = None if cell is None else torch.empty_like(cell)
        return torch.empty_like(data), torch.empty_like(hidden), state, [torch.empty_like(w) for w in weights]
    if name in ("batch_norm_elemt", "batch_norm_backward_elemt"):
        return torch.empty_like(args[0])
    if name in ("batch_norm_stats", "batch_norm_gather_stats_with_counts", "batch_norm_gather_stats"):
        return tuple(args[0].new_empty(args[0].shape[1], dtype=torch.float32) for _ in range(2))
    if name == "batch_norm_backward_reduce":
        weight = args[4]
        kind = args[2].dtype if weight is None else weight.dtype
        wide = [args[0].new_empty(args[0].shape[1], dtype=torch.float32) for _ in range(2)]
        return *wide, *(args[0].new_empty(args[0].shape[1], dtype=kind) for _ in range(2))
    return None


def tried_on_cpu(func: Any, args: Any, kwargs: Any, values: Values) -> Any:
    """The results on the CPU, or None where there is no such kernel or too much to compute."""
    if sum(t.numel() * t.element_size() for t in tensors_in(args, kwargs)) > MOST_BYTES:
        return None

    def real(t: torch.Tensor) -> torch.Tensor:
        known = values.of(t)
        if known is not None:
            return known
        return torch.zeros(t.shape, dtype=t.dtype)

    given = mapped(dict(kwargs), real)
    if given.get("device") is not None:
        given["device"] = torch.device("cpu")
    try:
        return func(*mapped(args, real), **given)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return None
