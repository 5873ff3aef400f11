"""Operator names: how traces spell them, and the class that stands in for an unknown one."""

from __future__ import annotations

import re
from functools import cache

AUTOGRAD_PREFIX = "autograd::engine::evaluate_function: "
OP_CLASSES = ("forward", "view", "backward", "optimizer", "collective", "copy")
"""Ops of one class cost the host about the same; a class answers for an op never seen."""

_VIEWS = frozenset(
    {
        "_reshape_alias", "_unsafe_view", "alias", "as_strided", "broadcast_tensors", "chunk", "conj",
        "contiguous", "detach", "detach_", "empty", "empty_like", "empty_strided", "expand", "expand_as",
        "flatten", "is_nonzero", "lift_fresh", "narrow", "numpy_T", "permute", "record_stream", "reshape",
        "resize_", "resolve_conj", "resolve_neg", "result_type", "select", "set_", "size", "slice", "split",
        "split_with_sizes", "squeeze", "stride", "swapaxes", "t", "to", "transpose", "unbind", "unflatten",
        "unsqueeze", "unsqueeze_", "view", "view_as",
    }
)  # fmt: skip
_COLLECTIVE = re.compile(r"^(nccl:|c10d::|_?c10d_functional::|gloo:|record_param_comms|All2All)")
_COPY = re.compile(r"^aten::(copy_|_to_copy|pin_memory|cuda)$")
_BACKWARD = re.compile(r"(Backward\d*>?$|AccumulateGrad|_backward$|Bwd)")


def plain_name(name: str) -> str:
    """The operator's own name, without the autograd engine's prefix."""
    return name[len(AUTOGRAD_PREFIX) :] if name.startswith(AUTOGRAD_PREFIX) else name


@cache
def stem(name: str) -> str:
    """The name without the overload number that differs between torch versions (AddmmBackward0)."""
    return re.sub(r"(?<=Backward)\d+$", "", plain_name(name))


@cache
def op_class(name: str) -> str:
    """Which of `OP_CLASSES` an operator belongs to."""
    name = plain_name(name)
    if name.startswith(("Optimizer.", "aten::_foreach", "aten::_fused")):
        return "optimizer"
    if _COLLECTIVE.match(name):
        return "collective"
    if _COPY.match(name):
        return "copy"
    if _BACKWARD.search(name):
        return "backward"
    if name.startswith("aten::") and name[6:] in _VIEWS:
        return "view"
    return "forward"
