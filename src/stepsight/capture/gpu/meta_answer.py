"""The fallback without a device guard: C++ sees tensors of the fake GPU on ``meta:1``.

C++ asks Python for a fake tensor's device. ``meta`` needs no guard, so autograd runs; Python still sees cuda.
What C++ then makes "on meta:1" is made on the GPU. Autocast asks C++ whether a tensor is on a GPU and does
nothing then: a script that uses it is refused, so that it is never captured in the wrong precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from stepsight.capture.gpu.device import CUDA
from stepsight.capture.unsupported import RECORD, UnsupportedError

TOLD = torch.device("meta", 1)
_DEVICE = torch.ops.prim.device.default


def device_for_cpp(tensor: Any) -> torch.device:
    """What C++ hears about a tensor's device."""
    device: torch.device | None = getattr(tensor, "fake_device", None)
    if device is None:
        return tensor.device
    if tensor.fake_mode.in_kernel_invocation:
        return torch.device("meta")
    return TOLD if device.type == "cuda" else device


def meant(kwargs: Any) -> Any:
    """Arguments of a call in which C++ names the device that it sees."""
    if kwargs and kwargs.get("device") == TOLD:
        return {**kwargs, "device": CUDA}
    return kwargs or {}


def install() -> None:
    of_tensor = FakeTensor.__torch_dispatch__.__func__
    of_mode = FakeTensorMode.__torch_dispatch__

    def on_tensor(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (
            device_for_cpp(args[0]) if func is _DEVICE else of_tensor(cls, func, types, args, meant(kwargs))
        )

    def on_mode(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return device_for_cpp(args[0]) if func is _DEVICE else of_mode(self, func, types, args, meant(kwargs))

    FakeTensor.__torch_dispatch__ = classmethod(on_tensor)
    FakeTensorMode.__torch_dispatch__ = on_mode
    enter = torch.autocast.__enter__

    def refuse(self: Any) -> Any:
        if self.device == "cuda" and self._enabled:
            raise UnsupportedError(
                f"no device guard could be installed here, and autocast does nothing without it; {RECORD}"
            )
        return enter(self)

    torch.autocast.__enter__ = refuse
