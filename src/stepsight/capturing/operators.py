"""Operators as a GPU has them: kernels of their own, cuDNN's recurrent layers, torchvision's signatures.

silu_backward and its like are defined by other operators, and a device may bring a kernel instead. A build
without CUDA has none for it, and C++ would take the operator apart before the recorder sees it; recurrent
layers likewise, into one call per cell. A kernel registered here is never run: the recorder comes before it.
A GPU build of torchvision cannot load its compiled operators here, and importing it fails because it adds
rules to operators that nobody defined. Their signatures are enough: a call is refused by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as functional
from torch._subclasses.fake_tensor import FakeTensor

from stepsight.capturing.request import UnsupportedError, own_kernels


def install_operators() -> None:
    _install_own_kernels()
    _install_recurrent()
    define_vision_operators()


def _no_fakes(module: ModuleType) -> None:
    """Transformers takes a fake tensor for a graph being traced and then keeps a causal mask that it leaves
    to the attention kernel on a GPU: none of its tensors is a fake one."""
    module.is_fake_tensor = lambda tensor: False  # type: ignore[attr-defined]


def _no_builds(module: ModuleType) -> None:
    """Extensions are compiled for minutes, and their kernels need a GPU."""

    def refuse(name: str, *_: Any, **__: Any) -> None:
        raise UnsupportedError(own_kernels(f"the extension {name!r}"))

    module.load = module.load_inline = refuse  # type: ignore[attr-defined]


_CHANGED: Mapping[str, Callable[[ModuleType], None]] = {
    "transformers.utils.import_utils": _no_fakes, "torch.utils.cpp_extension": _no_builds,
}  # fmt: skip


class _OnImport(MetaPathFinder):
    """Changes modules once they are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _CHANGED:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def then_change(module: ModuleType) -> None:
                run(module)
                _CHANGED[name](module)

            spec.loader.exec_module = then_change  # type: ignore[method-assign]
        return spec


def install_libraries() -> None:
    """What libraries ask of tensors is answered as on a GPU; extensions are not built."""
    for name, change in _CHANGED.items():
        if name in sys.modules:
            change(sys.modules[name])
    sys.meta_path.insert(0, _OnImport())


def install_old_defaults() -> None:
    """Defaults before torch 2.0: optimizers loop over tensors, gradients are zeroed in place, attention is
    written out."""
    for module in [m for name, m in sys.modules.items() if name.startswith("torch.optim.")]:
        if hasattr(module, "_default_to_fused_or_foreach"):
            module._default_to_fused_or_foreach = lambda *_, **__: (False, False)  # type: ignore[attr-defined]
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        owner.zero_grad = _in_place(owner.zero_grad)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)


def _in_place(zero_grad: Callable[..., None]) -> Callable[..., None]:
    def zero(self: Any, set_to_none: bool = False) -> None:
        zero_grad(self, set_to_none)

    return zero


_registered: list[Any] = []


def _install_own_kernels() -> None:
    """Register a kernel for every operator that is both composite and implemented by the CPU itself."""
    library = torch.library.Library("aten", "IMPL")
    _registered.append(library)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"):
        if name.startswith("aten::") and has(name, "CPU") and not has(name, "CUDA"):
            library.impl(name.removeprefix("aten::"), _never_run, "CUDA")


def _never_run(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("an operator reached the fake GPU without the recorder")


MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""cudnnRNNMode_t."""


def _install_recurrent() -> None:
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


SIGNATURES = tuple(
    f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")
)
_defined: list[torch.library.Library] = []
"""Definitions last as long as the object that made them."""


def define_vision_operators() -> None:
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or _defined:
        return
    for compiled in sorted(Path(spec.origin).parent.glob("_C*.so")):
        try:
            torch.ops.load_library(str(compiled))
        except OSError:
            continue
        return
    library = torch.library.Library("torchvision", "DEF")
    for signature in SIGNATURES:
        library.define(signature)
    _defined.append(library)


HALF = (torch.float16, torch.bfloat16)
OPERATOR = "aten::scaled_dot_product_attention"


def install_attention(capability: tuple[int, int]) -> None:
    """scaled_dot_product_attention takes the kernel that a GPU of this capability would."""
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
            one = _Attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
            return one.run(capability, gqa=enable_gqa)

    functional.scaled_dot_product_attention = attention
    torch._C._nn.scaled_dot_product_attention = attention
    torch._fused_sdp_choice = lambda *_, **__: 1


@dataclass(slots=True)
class _Attention:
    """One call, by the conditions of torch's sdp_utils."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    scale: float | None

    def run(self, capability: tuple[int, int], *, gqa: bool) -> torch.Tensor:
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            self.q, self.k, self.v = (
                t.to(dtype) if t.dtype == torch.float32 else t for t in (self.q, self.k, self.v)
            )
            if self.mask is not None and self.mask.dtype == torch.float32:
                self.mask = self.mask.to(dtype)
        four = self.q.dim() == 4 and self.k.dim() == 4
        if four and self._flash_fits(capability):
            return self._flash()
        if gqa and four:
            heads = self.q.shape[1]
            self.k, self.v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (self.k, self.v))
        efficient = torch.backends.cuda.mem_efficient_sdp_enabled()
        if four and efficient and self.q.dtype in (*HALF, torch.float32):
            return self._memory_efficient()
        return self._plain_products()

    def _flash_fits(self, capability: tuple[int, int]) -> bool:
        """Half precision, no mask, head size to 256, sm_80 or newer."""
        return (
            torch.backends.cuda.flash_sdp_enabled()
            and self.mask is None
            and self.q.dtype in HALF
            and self.q.shape[-1] == self.v.shape[-1] <= 256
            and capability >= (8, 0)
            and not (self.causal and self.q.shape[-2] != self.k.shape[-2])
        )

    def _flash(self) -> torch.Tensor:
        size, scale, inputs = self.q.shape[-1], self.scale, (self.q, self.k, self.v)
        if size % 8:  # padded to a multiple of eight and cut again
            scale = scale if scale is not None else float(size) ** -0.5
            inputs = tuple(functional.pad(t, (0, 8 - size % 8)) for t in inputs)
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        out: torch.Tensor = flash(*inputs, self.dropout, self.causal, scale=scale)[0]
        return out[..., :size] if size % 8 else out

    def _memory_efficient(self) -> torch.Tensor:
        q, k, v, mask = self.q, self.k, self.v, self._additive_mask()
        if mask is not None:
            length = k.shape[2]
            if length % 8:  # the kernel reads the mask in rows aligned to eight elements
                mask = functional.pad(mask, (0, 8 - length % 8))[..., :length]
            mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], length)
        needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        out: torch.Tensor = efficient(q, k, v, mask, needs_grad, self.dropout, self.causal, scale=self.scale)[
            0
        ]
        return out

    def _plain_products(self) -> torch.Tensor:
        """torch's math path: both operands scaled, two products and a softmax."""
        q, k = self.q, self.k
        factor = (self.scale if self.scale is not None else float(q.shape[-1]) ** -0.5) ** 0.5
        if self.causal:
            self.mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        mask = self._additive_mask()
        scores: Any = (q * factor) @ (k * factor).transpose(-2, -1)
        if mask is not None:
            scores = scores + mask
        weights = torch.softmax(scores, dim=-1)
        return torch.dropout(weights, self.dropout, True) @ self.v if self.dropout > 0 else weights @ self.v

    def _additive_mask(self) -> torch.Tensor | None:
        if self.mask is None or self.mask.dtype != torch.bool:
            return self.mask
        allowed = torch.zeros_like(self.mask, dtype=self.q.dtype)
        return allowed.masked_fill_(self.mask.logical_not(), float("-inf"))
