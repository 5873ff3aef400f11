"""Moving modules to the fake GPU: parameters keep their identity, so ties and optimizers stay valid."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from stepsight.capture.gpu.tensors import several
from stepsight.capture.unsupported import UnsupportedError


def install() -> None:
    torch.nn.Module._apply = _apply
    _refuse_data_parallel()
    _install_data()
    import torch.optim.optimizer as optimizer
    import torch.utils._foreach_utils as foreach

    for owner in (optimizer, foreach):
        types = getattr(owner, "_foreach_supported_types", None)
        if types is not None and FakeTensor not in types:
            types.append(FakeTensor)
    foreach._get_foreach_kernels_supported_devices = lambda: ["cuda", "xpu"]
    foreach._get_fused_kernels_supported_devices = lambda: ["cuda", "xpu", "cpu", "mps"]
    optimizer._get_foreach_kernels_supported_devices = foreach._get_foreach_kernels_supported_devices
    optimizer._get_fused_kernels_supported_devices = foreach._get_fused_kernels_supported_devices


def _install_data() -> None:
    """``parameter.data = moved``: a real tensor that is given memory of the GPU becomes a fake one."""
    plain = torch._C.TensorBase.data

    def give(self: torch.Tensor, value: torch.Tensor) -> None:
        here = getattr(self, "fake_device", None)
        if isinstance(value, FakeTensor) and here != value.fake_device:
            wanted = self.requires_grad
            made = torch.nn.Parameter(value, wanted) if isinstance(self, torch.nn.Parameter) else value
            kept = {k: v for k, v in self.__dict__.items() if k not in _TENSOR_ATTRIBUTES}
            _swap(self, made)
            for name, kept_value in kept.items():
                self.__dict__.setdefault(name, kept_value)
        else:
            plain.__set__(self, value)

    torch.Tensor.data = property(plain.__get__, give)


def _refuse_data_parallel() -> None:
    """nn.DataParallel on one GPU is the module itself; on several it is not captured."""
    made = torch.nn.DataParallel.__init__

    def init(self: Any, module: torch.nn.Module, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        places = list(range(torch.cuda.device_count())) if device_ids is None else list(device_ids)
        if len(places) > 1:
            raise UnsupportedError("nn.DataParallel: " + several([f"cuda:{n}" for n in places]))
        made(self, module, places, *args, **kwargs)

    torch.nn.DataParallel.__init__ = init


def _apply(self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
    """As torch.nn.Module._apply, where a parameter and what it becomes may be a real and a fake tensor."""
    if recurse:
        for module in self.children():
            module._apply(fn)
    for key, parameter in self._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            moved = fn(parameter)
        if moved is not parameter:
            self._parameters[key] = _become(parameter, moved)
        gradient = parameter.grad
        if gradient is not None:
            with torch.no_grad():
                self._parameters[key].grad = fn(gradient)
    for key, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[key] = fn(buffer)
    return self


def _become(parameter: torch.nn.Parameter, moved: torch.Tensor) -> torch.nn.Parameter:
    """``parameter`` holds ``moved`` from now on: the same object where torch can swap its tensor."""
    if not any(isinstance(t, FakeTensor) or is_traceable_wrapper_subclass(t) for t in (moved, parameter)):
        parameter.data = moved
        return parameter
    new = torch.nn.Parameter(moved, parameter.requires_grad)
    kept = {k: v for k, v in parameter.__dict__.items() if k not in _TENSOR_ATTRIBUTES}
    gradient, parameter.grad = parameter.grad, None
    try:
        _swap(parameter, new)
    except (RuntimeError, TypeError):  # an autograd graph refers to it: the module goes on with a new one
        parameter.grad = gradient
        for name, value in kept.items():
            new.__dict__.setdefault(name, value)
        return _replacements.setdefault(id(parameter), (parameter, new))[1]
    for name, value in kept.items():
        parameter.__dict__.setdefault(name, value)
    return parameter


_replacements: dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]] = {}
"""Parameters that could not be changed in place, kept alive, with what replaced them: ties stay tied."""


def _swap(one: torch.Tensor, other: torch.Tensor) -> None:
    """torch.utils.swap_tensors without its refusal of weak references: the converter of fake tensors keeps
    some, and none of them is followed again."""
    if one._use_count() > 1:
        raise RuntimeError("an autograd graph holds the tensor")
    slots = {
        name: (getattr(one, name, None), getattr(other, name, None))
        for t in (one, other)
        for name in copyreg._slotnames(type(t))  # type: ignore[attr-defined]
    }
    torch._C._swap_tensor_impl(one, other)
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    for name, (mine, theirs) in slots.items():
        setattr(one, name, theirs)
        setattr(other, name, mine)


_TENSOR_ATTRIBUTES = frozenset(
    ("_stepsight_value", "_stepsight_pinned", "_is_param", "fake_device", "fake_mode", "constant", "pytype",
     "dispatch_keys", "real_tensor", "_nonzero_memo", "_item_memo", "_unique_memo", "_nested_int_memo",
     "_nonzero_memo_vc", "_debug_trace", "_mode_key")
)  # fmt: skip
