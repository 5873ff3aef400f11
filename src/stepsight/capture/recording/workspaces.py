"""Memory that CUDA libraries and kernels take besides their results.

cuBLAS keeps a workspace per handle and stream, taken from torch's allocator at the first product; the
thread that runs the backward pass has a handle of its own. Some kernels take scratch memory for one call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import torch

MIB = 1 << 20
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "_scaled_mm", "_addmm_activation"))


def cublas_workspace_bytes(capability: tuple[int, int]) -> int:
    """torch's default CUBLAS_WORKSPACE_CONFIG: 32 MiB on Hopper and newer, else :4096:2:16:8."""
    return 32 * MIB if capability >= (9, 0) else 2 * 4096 * 1024 + 8 * 16 * 1024


class Workspaces:
    """What a GPU of this capability takes."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = capability
        self._handles: set[tuple[int, bool, int]] = set()

    def kept(self, name: str, stream: int) -> Iterator[int]:
        """Sizes taken once and kept."""
        if name not in _PRODUCTS:
            return
        backward = torch._C._current_autograd_node() is not None  # on a GPU it has a thread of its own
        handle = (threading.get_ident(), backward, stream)
        if handle not in self._handles:
            self._handles.add(handle)
            yield cublas_workspace_bytes(self.capability)

    def passing(self, name: str, args: Any, out: Any) -> int:
        """Bytes taken during the call and given back."""
        if name == "_scaled_dot_product_flash_attention_backward":
            q = args[1]
            batch, heads, length, size = q.shape
            rounded = -(-length // 128) * 128
            width = -(-size // 32) * 32
            return int(batch * heads * rounded * (width + 1) * 4)  # fp32 accumulator of dq, and row sums
        if name == "_scaled_dot_product_efficient_attention_backward":
            q = args[1]
            return int(q.shape[0] * q.shape[1] * q.shape[2] * 4)
        if name == "native_layer_norm_backward" and isinstance(args[1], torch.Tensor):
            cols = args[1].shape[-1]
            return int(2 * 4 * cols * 64)  # partial sums of weight and bias gradients
        if name == "embedding_dense_backward":
            return int(args[1].numel() * 8 * 4)  # sorted indices, their origins, and the sort's own buffer
        if name in ("sort", "argsort", "_unique2"):
            return int(args[0].numel() * (args[0].element_size() + 8) * 2)
        return 0
