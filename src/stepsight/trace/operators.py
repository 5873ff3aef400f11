"""A traced operator as an `AtenCall`: recorded inputs under the names of its schema, and what it made.

A profiler records the sizes and types of inputs, and scalars since torch 1.13; results follow from them, or
from the next operator that reads them. Strides follow from the kernels that ran: PyTorch computes an index
for every element only where an operand is broadcast or strided.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from stepsight.program.aten.call import AtenCall, TensorFact
from stepsight.trace.events import Event, listed

_DTYPES = {
    "float": "fp32", "double": "fp64", "c10::half": "fp16", "half": "fp16", "c10::bfloat16": "bf16",
    "bfloat16": "bf16", "long int": "int64", "long": "int64", "long long": "int64", "int": "int32",
    "short": "int16", "bool": "bool", "unsigned char": "uint8", "byte": "uint8", "signed char": "int8",
    "char": "int8", "c10::float8_e4m3fn": "fp8", "c10::float8_e5m2": "fp8", "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8", "c10::float8_e4m3fnuz": "fp8", "c10::float8_e8m0fnu": "fp8",
}  # fmt: skip
LARGEST_SIDE = 2**48
"""No tensor has a longer side; what says so is damaged."""
FEW_CHANNELS = 4
_CONVOLUTION = "input weight bias stride padding dilation transposed output_padding groups"
_SCHEMAS = {
    "addmm": "self mat1 mat2", "baddbmm": "self batch1 batch2", "addmv": "self mat vec",
    "convolution": _CONVOLUTION, "_convolution": _CONVOLUTION,
    "cudnn_convolution": "input weight padding stride dilation groups",
    "cudnn_convolution_transpose": "input weight padding output_padding stride dilation groups",
    "miopen_convolution": "input weight bias padding stride dilation groups",
    "_conv_depthwise2d": "input weight kernel_size bias stride padding dilation",
    "convolution_backward": "grad_output input weight bias_sizes stride padding dilation transposed"
    " output_padding groups output_mask",
    "cudnn_convolution_backward": "input grad_output weight padding stride dilation groups",
    "embedding": "weight indices", "embedding_dense_backward": "grad_output indices num_weights",
    "index_put_": "self indices values accumulate", "_index_put_impl_": "self indices values accumulate",
    "index_put": "self indices values accumulate", "copy_": "self src non_blocking",
    "native_layer_norm": "input normalized_shape", "_softmax": "self dim", "_log_softmax": "self dim",
    "native_layer_norm_backward": "grad_out input normalized_shape mean rstd weight bias output_mask",
    "_softmax_backward_data": "grad_output output dim",
    "_log_softmax_backward_data": "grad_output output dim",
    "native_group_norm": "input weight bias N C HxW group",
    "native_group_norm_backward": "grad_out input mean rstd weight N C HxW group",
    "sort": "self dim", "topk": "self k dim", "scatter": "self dim index src", "gather": "self dim index",
    "scatter_": "self dim index src", "scatter_add": "self dim index src",
    "scatter_add_": "self dim index src",
    "index_add_": "self dim index source", "index_select": "self dim index",
    "max_pool2d_with_indices": "self kernel_size stride padding dilation ceil_mode",
    "avg_pool2d": "self kernel_size stride padding ceil_mode",
    "_fused_adam_": "self grads exp_avgs exp_avg_sqs max_exp_avg_sqs",
    "_fused_adamw_": "self grads exp_avgs exp_avg_sqs max_exp_avg_sqs",
    "_fused_sgd_": "self grads momentum_buffer_list", "_fused_adagrad_": "self grads state_sums",
}  # fmt: skip
"""Positional arguments (native_functions.yaml of PyTorch) of calls whose lowering asks for them by name."""
_UNARY_NAMES = """
    exp log tanh sqrt rsqrt neg abs sigmoid relu gelu silu cos sin reciprocal sign floor ceil erf
    bitwise_not logical_not clamp clamp_min clamp_max clamp_min_ clamp_max_
"""
_COMPARING = "lt le gt ge eq ne isfinite isnan isinf logical_and logical_or logical_not"
_REDUCING = "sum mean amax amin max min norm linalg_vector_norm prod any all var std"
_UNARY = frozenset(_UNARY_NAMES.split())
"""Functions of one tensor: a second one of its size is where the result goes."""
_COMPARES, _REDUCES = frozenset(_COMPARING.split()), frozenset(_REDUCING.split())
_ALIASES = {"linear": "mm", "matmul": "mm"}


def traced_call(op: Event, *, strided: bool = False, result: tuple[int, ...] = ()) -> AtenCall | None:
    """The library call of an ATen operator; None where its result is not known.

    ``strided``: its kernel computed an index for every element. ``result``: what the next operator read.
    """
    return _call(op.name, op.sizes_text(), bytes(op.args.types), bytes(op.args.concrete), strided, result)


@lru_cache(maxsize=16384)
def _call(
    op: str, sizes: bytes, kinds: bytes, concrete: bytes, strided: bool, result: tuple[int, ...]
) -> AtenCall | None:
    name = op.rsplit("::", 1)[-1]
    inputs, places, scalars = _flattened(sizes, kinds), _places(sizes, kinds), listed(concrete)
    if not inputs or not op.startswith("aten::"):
        return None
    keys = _SCHEMAS.get(name, "").split()
    arguments = {
        keys[i] if i < len(keys) else f"argument {i}": value
        for i in range(max(len(places), len(scalars)))
        if (value := _argument(places, scalars, i)) is not None
    }
    if name in _ALIASES:
        return _product(name, places)
    if name == "index_select" and len(inputs) > 1:  # an embedding's forward
        name, arguments = "embedding", {"weight": inputs[0], "indices": inputs[1]}
    if name == "cudnn_convolution_transpose":
        arguments["transposed"] = True
    if strided:  # what an operator in place changes keeps its layout
        kept = 1 if name.endswith("_") else 0
        inputs = [*inputs[:kept], *(_transposed(t) for t in inputs[kept:])]
    if name in _UNARY and len(inputs) == 2 and inputs[0] == inputs[1]:
        inputs = inputs[:1]
    made = _made(name, inputs, arguments, bool(scalars), result)
    if made is None:
        return None
    if "conv" in name:
        name = "convolution_backward" if "backward" in name else "convolution"
        image, weight = arguments["input"], arguments["weight"]
        groups = 1 if arguments.get("transposed") else image.shape[1] // max(weight.shape[1], 1)
        arguments.setdefault("groups", max(groups, 1))
        # An image of few channels is the network's input; normalised layers have no bias.
        arguments.setdefault("output_mask", (image.shape[1] > FEW_CHANNELS, True, False))
        if not _is_axes(arguments.get("stride")):
            arguments["stride"] = _stride(image, arguments.get("grad_output", made[0]))
    return AtenCall(name, tuple(inputs), made, arguments, pointwise=True)


def _argument(places: Sequence[Any], scalars: Sequence[Any], i: int) -> Any:
    if i < len(places) and places[i] is not None:
        return places[i]
    return _scalar(scalars[i]) if i < len(scalars) else None


def _scalar(text: Any) -> Any:
    """A recorded scalar: a number, a truth value, or a list of them; None where it is none."""
    if not isinstance(text, str) or not text:
        return None
    if text.startswith("["):
        parts = [_scalar(part) for part in text.strip("[]").split(", ") if part]
        return tuple(parts) if None not in parts else None
    if text in ("True", "False"):
        return text == "True"
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None


def _product(name: str, places: Sequence[Any]) -> AtenCall | None:
    """`linear` and `matmul` whose inner call was not recorded, as the product they launch."""
    if len(places) < 2 or not all(isinstance(t, TensorFact) and t.shape for t in places[:2]):
        return None
    left, right = places[0], places[1]
    rows, depth = prod(left.shape[:-1]), left.shape[-1]
    if name == "linear" or len(right.shape) == 2:
        wide = right.shape[0] if name == "linear" else right.shape[-1]
        pair = fact((rows, depth), left.dtype), fact((depth, wide), right.dtype)
        return AtenCall("mm", pair, (fact((rows, wide), left.dtype),))
    if len(left.shape) != len(right.shape) or len(left.shape) < 3:
        return None
    batch = prod(left.shape[:-2])
    pair = fact((batch, *left.shape[-2:]), left.dtype), fact((batch, *right.shape[-2:]), right.dtype)
    return AtenCall("bmm", pair, (fact((batch, left.shape[-2], right.shape[-1]), left.dtype),))


def _made(
    name: str, inputs: Sequence[TensorFact], arguments: Mapping[str, Any], has_scalars: bool,
    result: tuple[int, ...],
) -> tuple[TensorFact, ...] | None:  # fmt: skip
    """What a call makes; None where neither its inputs nor the next operator tell."""
    first = inputs[0]
    if "conv" in name:
        return _convolved(name, arguments, result)
    if "pool" in name:
        return _pooled(name, inputs, arguments, result)
    if name in ("cat", "stack", "_cat"):
        return (fact((sum(t.elements for t in inputs),), first.dtype),)
    if name.rstrip("_") in _REDUCES:
        return (fact(_kept(first, arguments, has_scalars), first.dtype),)
    if name in ("embedding_dense_backward", "native_group_norm", "native_group_norm_backward"):
        needed = ("num_weights",) if "embedding" in name else ("N", "C", "group")
        return (first,) if all(key in arguments for key in needed) else None
    if name == "gather" and len(inputs) > 1:
        return (fact(inputs[1].shape, first.dtype),)
    if name == "index" and len(inputs) > 1:
        picked = max(t.elements for t in inputs[1:])
        return (fact((picked, *first.shape[1:]), first.dtype),)
    shape = _broadcast(inputs)
    dtype = "bool" if name.rstrip("_") in _COMPARES else max(inputs, key=lambda t: t.elements).dtype
    return (first,) if name.endswith("_") else (fact(shape, dtype),)


def _kept(source: TensorFact, arguments: Mapping[str, Any], has_scalars: bool) -> tuple[int, ...]:
    """The shape of a reduction. Without recorded scalars all axes but the last are taken to go, as in a
    bias gradient: the time depends on what is read."""
    axes = next((a for key, a in arguments.items() if key != "argument 0" and _is_axes(a)), None)
    if axes is None:
        return () if has_scalars or len(source.shape) < 2 else source.shape[-1:]
    listed_axes = {a % max(len(source.shape), 1) for a in ((axes,) if isinstance(axes, int) else axes)}
    return tuple(s for i, s in enumerate(source.shape) if i not in listed_axes)


def _is_axes(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, tuple) and all(type(x) is int for x in value))


def _convolved(
    name: str, arguments: Mapping[str, Any], result: tuple[int, ...]
) -> tuple[TensorFact, ...] | None:
    image, weight = arguments.get("input"), arguments.get("weight")
    if not isinstance(image, TensorFact) or not isinstance(weight, TensorFact):
        return None
    if "backward" in name:
        return (image, weight) if isinstance(arguments.get("grad_output"), TensorFact) else None
    if len(image.shape) != len(weight.shape):
        return None
    groups = arguments.get("groups", 1)
    back = bool(arguments.get("transposed"))
    channels = weight.shape[1] * (groups if isinstance(groups, int) else 1) if back else weight.shape[0]
    stride, padding, dilation = (arguments.get(key) for key in ("stride", "padding", "dilation"))
    if not (_is_axes(stride) and _is_axes(padding)):
        return (fact(result, image.dtype),) if result[:2] == (image.shape[0], channels) else None
    more = arguments.get("output_padding")
    sides = []
    for i, (size, window) in enumerate(zip(image.shape[2:], weight.shape[2:], strict=True)):
        step, cut = max(_at(stride, i, 1), 1), _at(dilation, i, 1) * (window - 1) - 2 * _at(padding, i, 0)
        sides.append((size - 1) * step + cut + _at(more, i, 0) + 1 if back else (size - cut - 1) // step + 1)
    return (fact((image.shape[0], channels, *(max(s, 1) for s in sides)), image.dtype),)


def _stride(image: TensorFact, result: TensorFact) -> int:
    """The stride of a convolution whose scalars were not recorded: how much smaller the result is."""
    return max(1, round(image.shape[-1] / max(result.shape[-1], 1)))


def _at(values: Any, i: int, default: int) -> int:
    if isinstance(values, int):
        return values
    return values[min(i, len(values) - 1)] if values else default


def _pooled(
    name: str, inputs: Sequence[TensorFact], arguments: Mapping[str, Any], result: tuple[int, ...]
) -> tuple[TensorFact, ...] | None:
    if "backward" in name:
        return (max(inputs, key=lambda t: t.elements),)
    image = inputs[0]
    window = arguments.get("kernel_size")
    if _is_axes(window):
        stride, padding = arguments.get("stride") or window, arguments.get("padding", 0)
        sides = [
            (size + 2 * _at(padding, i, 0) - _at(window, i, 1)) // max(_at(stride, i, 1), 1) + 1
            for i, size in enumerate(image.shape[2:])
        ]
        result = (*image.shape[:2], *(max(s, 1) for s in sides))
    if result[:2] != image.shape[:2] or len(result) != len(image.shape):
        return None
    made = fact(result, image.dtype)
    return (made, fact(result, "int64")) if "indices" in name else (made,)


def _broadcast(tensors: Sequence[TensorFact]) -> tuple[int, ...]:
    """The shape that tensors broadcast to; the largest one's where they do not."""
    axes = max(len(t.shape) for t in tensors)
    padded = [(1,) * (axes - len(t.shape)) + t.shape for t in tensors]
    shape = tuple(max(sides) for sides in zip(*padded, strict=True))
    fits = all(side in (1, whole) for one in padded for side, whole in zip(one, shape, strict=True))
    return shape if fits else max(tensors, key=lambda t: t.elements).shape


def fact(shape: Sequence[int], dtype: str) -> TensorFact:
    """A contiguous tensor."""
    strides, step = [], 1
    for side in reversed(shape):
        strides.append(step)
        step *= max(side, 1)
    return TensorFact(tuple(shape), dtype, tuple(reversed(strides)))


def _transposed(t: TensorFact) -> TensorFact:
    """The same tensor with its axes in the opposite order in memory."""
    mirrored = fact(t.shape[::-1], t.dtype).strides[::-1]
    return TensorFact(t.shape, t.dtype, mirrored)


def dtype_of(text: str) -> str:
    """The profiler's name of an element type in ours; fp32 where it names none."""
    text = text.lower().strip()
    if text.startswith("tensor("):
        text = text[7:].rstrip(")")
    return _DTYPES.get(text, "fp32")


def tensors_of(event: Event) -> list[TensorFact]:
    """The tensor inputs of an operator, lists flattened, scalars left out; not to be changed."""
    return _flattened(event.sizes_text(), bytes(event.args.types))


@lru_cache(maxsize=16384)
def _flattened(sizes: bytes, kinds: bytes) -> list[TensorFact]:
    """Layers and steps repeat the same few lists."""
    found: list[TensorFact] = []
    for place in _places(sizes, kinds):
        found += place if isinstance(place, tuple) else [place] if place is not None else []
    return found


@lru_cache(maxsize=16384)
def _places(sizes: bytes, kinds: bytes) -> list[TensorFact | tuple[TensorFact, ...] | None]:
    """One entry per input: its tensor, the tensors of a list, or None."""
    types = listed(kinds)
    found: list[TensorFact | tuple[TensorFact, ...] | None] = []
    for i, shape in enumerate(listed(sizes)):
        tensors = _tensors(shape, types[i] if i < len(types) else "")
        plain = _is_shape(shape)
        found.append((tensors[0] if plain else tuple(tensors)) if tensors else None)
    return found


def _tensors(shape: Any, kind: Any) -> list[TensorFact]:
    if not isinstance(shape, list) or not shape:
        return []
    if _is_shape(shape):
        if isinstance(kind, str) and kind.startswith(("Scalar", "GenericList", "Device")):
            return []
        return [fact(shape, dtype_of(kind if isinstance(kind, str) else ""))]
    if not all(isinstance(x, list) for x in shape):
        return []
    inner = _inner_types(kind, len(shape))
    return [t for i, s in enumerate(shape) for t in _tensors(s, inner[i] if i < len(inner) else "")]


def _is_shape(value: Any) -> bool:
    """Whether a recorded entry is the sizes of one tensor, none of them impossible."""
    return isinstance(value, list) and all(type(x) is int and 0 <= x < LARGEST_SIDE for x in value)


def _inner_types(kind: Any, count: int) -> list[Any]:
    """The types of a list's members: listed, or spelled out as "GenericList[Tensor(float),…]"."""
    if isinstance(kind, list):
        return kind
    if isinstance(kind, str) and kind.startswith("GenericList["):
        return re.findall(r"Tensor\([^)]*\)", kind) or ["GenericList"] * count
    return ["" if kind == "TensorList" else kind] * count
