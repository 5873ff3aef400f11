"""How tensors and modules come to be on the fake GPU: moves, constructors from data, attributes that C++
answers.

Moved parameters keep their identity, so ties and optimizers stay valid.
"""

from __future__ import annotations

import contextlib
import copyreg
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from stepsight.capturing.device import CUDA
from stepsight.capturing.request import RECORD, UnsupportedError


def on_gpu(device: Any) -> bool:
    """Whether a device argument (name, number or device) means a GPU."""
    if device is None or isinstance(device, bool):
        return False
    if isinstance(device, int):
        return True
    return bool(torch.device(device).type == "cuda")


def only_gpu(device: Any) -> Any:
    """Every GPU of the node is cuda:0 here: a process has one. Other devices stay as they are."""
    if not on_gpu(device):
        return device
    number = device if isinstance(device, int) else torch.device(device).index
    if number and number != int(os.environ.get("LOCAL_RANK", "0")):
        raise UnsupportedError(several([f"cuda:{os.environ.get('LOCAL_RANK', '0')}", f"cuda:{number}"]))
    return CUDA


def several(places: Sequence[str]) -> str:
    """Why a process with more than one GPU is refused."""
    return (
        f"one process uses several GPUs ({', '.join(places)}), which is not captured; "
        f"start one process a GPU (DistributedDataParallel, FSDP), or {RECORD}"
    )


def install_tensors(read: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """``read`` gives the CPU tensor that copying a fake tensor to the host would give."""
    _install_moves()
    _install_constructors()
    _install_attributes()
    _install_reads(read)
    _install_indexing()
    for name in ("init_gpu_context", "init_cuda_context"):  # touches the driver once
        if hasattr(fake_tensor, name):
            setattr(fake_tensor, name, lambda *_, **__: None)
    if hasattr(torch._C, "_ensureCUDADeviceGuardSet"):
        torch._C._ensureCUDADeviceGuardSet = lambda: None


def _install_moves() -> None:
    move = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and isinstance(args[0], str | torch.device | int) and not isinstance(args[0], bool):
            args = (only_gpu(args[0]), *args[1:])
        if kwargs.get("device") is not None:
            kwargs["device"] = only_gpu(kwargs["device"])
        return move(self, *args, **kwargs)

    def cuda(
        self: torch.Tensor, device: Any = None, non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:  # fmt: skip
        return to(self, CUDA, non_blocking=non_blocking, memory_format=memory_format)

    torch.Tensor.to, torch.Tensor.cuda = to, cuda
    torch.Tensor.pin_memory = lambda self, *_, **__: _pinned(self)
    torch.Tensor.is_pinned = lambda self, *_, **__: getattr(self, "_stepsight_pinned", False)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.detach() if not isinstance(tensor, FakeTensor) else tensor
    with contextlib.suppress(AttributeError, RuntimeError):
        copy._stepsight_pinned = True
    return copy


def _install_constructors() -> None:
    """Constructors from data run below every dispatch mode: make the tensor on the CPU, then move it."""

    def from_data(real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def make(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
            if device is None:
                device = _default_device(data)
            if not on_gpu(device):
                return (
                    real(data, *args, **kwargs)
                    if device is None
                    else real(data, *args, device=device, **kwargs)
                )
            if isinstance(data, FakeTensor):
                return real(data, *args, **kwargs).to(CUDA)
            wants_grad = bool(kwargs.pop("requires_grad", False))
            with torch.device("cpu"):
                made = real(data, *args, **kwargs)
            return made.to(CUDA).requires_grad_(wants_grad) if wants_grad else made.to(CUDA)

        return make

    torch.tensor, torch.as_tensor = from_data(torch.tensor), from_data(torch.as_tensor)
    torch.asarray = from_data(torch.asarray)

    def new_tensor(
        self: torch.Tensor, data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False,
        **_: Any,
    ) -> torch.Tensor:  # fmt: skip
        return torch.tensor(
            data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad
        )

    torch.Tensor.new_tensor = new_tensor
    real_generator = torch.Generator

    class Generator(real_generator):  # type: ignore[misc, valid-type]
        def __new__(cls, device: Any = None) -> Any:
            return real_generator()

    torch.Generator = Generator


def _default_device(data: Any) -> Any:
    """The device of ``with torch.device(…)`` or torch.set_default_device, where it is a GPU."""
    if isinstance(data, torch.Tensor):
        return None
    for mode in reversed(torch.overrides._get_current_function_mode_stack()):
        device = getattr(mode, "device", None)
        if isinstance(device, torch.device):
            return device if device.type == "cuda" else None
    return None


def _install_attributes() -> None:
    FakeTensor.get_device = lambda self: 0 if self.device.type == "cuda" else -1
    _answer_kinds(FakeTensor, lambda tensor: tensor.device)
    try:
        from torch.distributed.tensor import DTensor
    except ImportError:
        return
    # A DTensor takes its device from C++, which does not know that the local tensor is fake.
    DTensor.device = property(lambda self: self._local_tensor.device)
    _answer_kinds(DTensor, lambda tensor: tensor._local_tensor.device)


def _answer_kinds(owner: Any, device_of: Callable[[Any], torch.device]) -> None:
    """is_cuda, is_meta and is_cpu by the device that Python knows."""

    def asked(kind: str) -> property:
        return property(lambda self: device_of(self).type == kind)

    for kind in ("cuda", "meta", "cpu"):
        setattr(owner, f"is_{kind}", asked(kind))


def _install_reads(read: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def formatted(self: FakeTensor, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, "")

    def listed(self: FakeTensor) -> Any:
        """The host waits for the values, as ``.cpu()`` does."""
        values = self.detach().cpu()
        return (read(values) if isinstance(values, FakeTensor) else values).tolist()

    FakeTensor.numpy = lambda self, **_: read(self).numpy()
    FakeTensor.tolist = listed
    FakeTensor.__array__ = lambda self, *_, **__: read(self).numpy()
    FakeTensor.__format__ = formatted
    FakeTensor.__deepcopy__ = _deep_copy
    FakeTensor.record_stream = lambda self, stream: None
    data_ptr = torch.UntypedStorage.data_ptr

    def pointer(self: torch.UntypedStorage) -> int:
        """Storages without data still differ from each other."""
        if self.device.type == "meta":
            return int(self._cdata)
        try:
            return int(data_ptr(self) or self._cdata)
        except RuntimeError:
            return int(self._cdata)

    torch.UntypedStorage.data_ptr = pointer
    tensor_ptr = torch.Tensor.data_ptr

    def tensor_pointer(self: torch.Tensor) -> int:
        if isinstance(self, FakeTensor):
            return int(self.untyped_storage()._cdata + self.storage_offset() * self.element_size())
        return int(tensor_ptr(self))

    torch.Tensor.data_ptr = tensor_pointer


def _install_indexing() -> None:
    """Lists and arrays as indices become tensors below every dispatch mode: copy them to the GPU here."""
    get, put = torch.Tensor.__getitem__, torch.Tensor.__setitem__

    def item(self: FakeTensor, index: Any) -> Any:
        return get(self, _index(self, index))

    def set_item(self: FakeTensor, index: Any, value: Any) -> None:
        put(self, _index(self, index), value)

    FakeTensor.__getitem__, FakeTensor.__setitem__ = item, set_item


def _index(tensor: FakeTensor, index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_index(tensor, one) for one in index)
    if isinstance(index, list) and not _of_numbers(index):
        return index
    if isinstance(index, list) or type(index).__name__ == "ndarray":
        with torch.device("cpu"):
            made = torch.tensor(index, dtype=None if len(index) else torch.int64)
        return made.to(tensor.device)
    return index


def _of_numbers(values: list[Any]) -> bool:
    return all(_of_numbers(v) if isinstance(v, list) else isinstance(v, int) for v in values)


def _deep_copy(self: FakeTensor, memo: dict[int, Any]) -> Any:
    if id(self) in memo:
        return memo[id(self)]
    copy = self.detach().clone()
    if isinstance(self, torch.nn.Parameter):
        copy = torch.nn.Parameter(copy, self.requires_grad)
    else:
        copy.requires_grad_(self.requires_grad)
    memo[id(self)] = copy
    return copy


def install_modules() -> None:
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
        return _replacements.setdefault(parameter, new)
    for name, value in kept.items():
        parameter.__dict__.setdefault(name, value)
    return parameter


_replacements: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
"""Parameters that could not be changed in place, with what replaced them: ties stay tied."""


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
