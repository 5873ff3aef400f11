"""Operators as a GPU has them: kernels of their own, cuDNN's recurrent layers, torchvision's signatures.

silu_backward and its like are defined by other operators, and a device may bring a kernel instead. A build
without CUDA has none for it, and C++ would take the operator apart before the recorder sees it; recurrent
layers likewise, into one call per cell. A kernel registered here is never run: the recorder comes before it.
A GPU build of torchvision cannot load its compiled operators here, and importing it fails because it adds
rules to operators that nobody defined. Their signatures are enough: a call is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


def install() -> None:
    _install_own_kernels()
    _install_recurrent()
    define_vision_operators()


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
