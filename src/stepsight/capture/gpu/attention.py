"""scaled_dot_product_attention as torch chooses its kernel on a GPU: flash, memory-efficient, or products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional

HALF = (torch.float16, torch.bfloat16)
OPERATOR = "aten::scaled_dot_product_attention"


def install(capability: tuple[int, int]) -> None:
    plain = functional.scaled_dot_product_attention

    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        if query.device.type != "cuda":
            return plain(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        with torch._C._profiler._RecordFunctionFast(OPERATOR):
            return _on_gpu(
                plain, capability, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
            )

    functional.scaled_dot_product_attention = attention
    torch._C._nn.scaled_dot_product_attention = attention
    torch._fused_sdp_choice = lambda *_, **__: 1


def _on_gpu(
    plain: Callable[..., torch.Tensor], capability: tuple[int, int], q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, mask: torch.Tensor | None, dropout: float, causal: bool, scale: float | None, gqa: bool,
) -> torch.Tensor:  # fmt: skip
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        q, k, v = (t.to(dtype) if t.dtype == torch.float32 else t for t in (q, k, v))
        if mask is not None and mask.dtype == torch.float32:
            mask = mask.to(dtype)
    four = q.dim() == 4 and k.dim() == 4
    if four and _flash_fits(capability, q, k, v, mask, causal):
        return _flash(q, k, v, dropout, causal, scale)
    if gqa and four:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    if four and torch.backends.cuda.mem_efficient_sdp_enabled() and q.dtype in (*HALF, torch.float32):
        return _memory_efficient(q, k, v, mask, dropout, causal, scale)
    return _plain_products(q, k, v, mask, dropout, causal, scale)


def _flash_fits(
    capability: tuple[int, int], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    mask: torch.Tensor | None, causal: bool,
) -> bool:  # fmt: skip
    """The conditions of torch's sdp_utils: half precision, no mask, head size to 256, sm_80 or newer."""
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and mask is None
        and q.dtype in HALF
        and q.shape[-1] == v.shape[-1] <= 256
        and capability >= (8, 0)
        and not (causal and q.shape[-2] != k.shape[-2])
    )


def _flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float, causal: bool, scale: float | None
) -> torch.Tensor:
    size = q.shape[-1]
    if size % 8:  # padded to a multiple of eight and cut again
        scale = scale if scale is not None else float(size) ** -0.5
        q, k, v = (functional.pad(t, (0, 8 - size % 8)) for t in (q, k, v))
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
        q, k, v, dropout, causal, scale=scale
    )[0]
    return out[..., :size] if size % 8 else out


def _memory_efficient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, dropout: float,
    causal: bool, scale: float | None,
) -> torch.Tensor:  # fmt: skip
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), float("-inf"))
        length = k.shape[2]
        if length % 8:  # the kernel reads the mask in rows aligned to eight elements
            mask = functional.pad(mask, (0, 8 - length % 8))[..., :length]
        mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], length)
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, mask, needs_grad, dropout, causal, scale=scale
    )[0]
    return out


def _plain_products(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, dropout: float,
    causal: bool, scale: float | None,
) -> torch.Tensor:  # fmt: skip
    """torch's math path: both operands scaled, two products and a softmax."""
    factor = (scale if scale is not None else float(q.shape[-1]) ** -0.5) ** 0.5
    if causal:
        allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        mask = torch.zeros_like(allowed, dtype=q.dtype).masked_fill_(allowed.logical_not(), float("-inf"))
    elif mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    scores: Any = (q * factor) @ (k * factor).transpose(-2, -1)
    if mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, dim=-1)
    return torch.dropout(weights, dropout, True) @ v if dropout > 0 else weights @ v
