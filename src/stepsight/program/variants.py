"""What sets a kernel apart from others of its family: its variant and its role in training.

Models of kernels read these fields and no names. `classify` derives them once from the library call that
launches the kernel: an operator of ATen, a kernel of a trace, or the word that a description uses.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple


class Role(Enum):
    """What a kernel of a backward pass computes for its layer."""

    DGRAD = "dgrad"
    """The gradient of the layer's input: needed by the layer before it."""
    WGRAD = "wgrad"
    """The gradient of a weight."""
    BIAS = "bias"
    """The gradient of a bias."""
    NORM_WEIGHT = "norm weight"
    """The gradients of a norm's weight and bias."""
    ACCUMULATE = "accumulate"
    """Adds a gradient to that of earlier micro batches."""


class Kind(NamedTuple):
    """A kernel's variant within its family, and its role.

    gemm: ``bmm`` (called batched), ``baddbmm`` (adds a third matrix). attention: the version (``flash1`` to
    ``flash3``, ``cudnn``, ``efficient``, ``serving``). conv: ``cudnn`` (cuDNN's depthwise kernels),
    ``grouped_direct`` (its kernels for groups without tensor cores). Kernels that stream memory: the operator
    without library, underscores and overload (``gelu``, ``index_put``).
    """

    variant: str = ""
    role: Role | None = None


PAGEABLE, GROUPED_DIRECT = "pageable", "grouped_direct"
FLASH1, FLASH2, FLASH3 = "flash1", "flash2", "flash3"
CUDNN, EFFICIENT, SERVING = "cudnn", "efficient", "serving"

_ATTENTION: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(context|encoder|generation)_attention", re.IGNORECASE), SERVING),
    (re.compile(r"cudnn", re.IGNORECASE), CUDNN),
    (re.compile(r"flash_?attn_?3|flash_?attention_?3|flash_?3|fa_?3|sm90|hopper", re.IGNORECASE), FLASH3),
    (re.compile(r"flash_?1|fmha_fprop|fmha_dgrad", re.IGNORECASE), FLASH1),
    (re.compile(r"efficient|fmha_cutlass|xformers|memeff", re.IGNORECASE), EFFICIENT),
)
_DEPTHWISE_CUDNN = re.compile(r"cudnn|c1_k1", re.IGNORECASE)
_ROLES = {role.value: role for role in Role}
_ALIASES = {
    "_softmax_backward_data": "softmax", "_log_softmax_backward_data": "log_softmax",
    "_index_put_impl_": "index_put_direct", "to": "cast", "_to_copy": "cast", "triu": "tril",
}  # fmt: skip


@lru_cache(maxsize=65536)
def classify(family: str, operator: str) -> Kind:
    """The kind of a kernel of ``family`` that ``operator`` launches."""
    if family == "gemm":
        gradient = next((r for r in (Role.DGRAD, Role.WGRAD) if operator.endswith(r.value)), None)
        return Kind(operator if operator in ("bmm", "baddbmm") else "", gradient)
    if family.startswith("attention"):
        named = (version for pattern, version in _ATTENTION if pattern.search(operator))
        return Kind(next(named, FLASH2))
    if family.startswith("conv"):
        if GROUPED_DIRECT in operator:
            return Kind(GROUPED_DIRECT)
        return Kind(CUDNN if _DEPTHWISE_CUDNN.search(operator) else "")
    plain = plain_name(operator)
    if family.startswith("copy") and plain.endswith(PAGEABLE):
        plain = PAGEABLE
    return Kind(plain, _ROLES.get(operator))


def plain_name(operator: str) -> str:
    """An operator without library, underscores and overload: ``aten::add_.Tensor`` → add."""
    if operator.startswith("triton_"):
        reduces = operator.startswith(("triton_red", "triton_per"))
        return "triton_reduction" if reduces else "triton_pointwise"
    plain = operator.rsplit("::", 1)[-1].split(".", 1)[0]
    plain = _ALIASES.get(plain, plain).strip("_")
    return _ALIASES.get(plain, plain)
