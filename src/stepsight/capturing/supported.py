"""What can be captured: whether this torch has what a capture needs and runs on the fake GPU, and what stops
a script with one line instead of being captured wrongly.

What torch has is asked by feature, not by version. Whether it runs on the fake GPU is tried with a tiny
autocast step: without the device guard autocast silently does nothing, and a step would be predicted in the
wrong precision.
"""

from __future__ import annotations

import contextlib
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import _default_to_fused_or_foreach

if TYPE_CHECKING:
    from stepsight.capturing.recorder import Recorder

RECORD = "record a trace on a GPU instead and use stepsight predict --trace"

_NEEDS_VALUES = {
    "DynamicOutputShapeException": "makes a result whose size depends on values that only a GPU computes",
    "DataDependentOutputException": "needs values that only a GPU computes",
    "UnsupportedOperatorException": "has no rule that tells the sizes of its results without computing them",
    "FakeTensorDeviceMismatchError": "if it is no mistake of the script, an operator takes host tensors "
    "together with the GPU's in a way that cannot be captured",
    "UnsupportedFakeTensorException": "works on a kind of tensor that cannot be without data",
}
"""torch's own errors for operators that cannot run without data, by class name, and what they mean."""

_OWN_KERNELS = frozenset(
    ("triton", "flash_attn", "apex", "transformer_engine", "deepspeed", "xformers", "bitsandbytes",
     "mamba_ssm", "causal_conv1d", "fused_dense_lib", "amp_C", "pycuda", "cupy", "torch_scatter",
     "torch_sparse")
)  # fmt: skip
"""Packages whose kernels are their own: without a GPU they do not import, or do not say what they launch."""


class UnsupportedError(BaseException):
    """Ends the script; a BaseException, so that scripts do not catch it. The message is one line."""


def explained(error: BaseException) -> str:
    """One line for an error that means "cannot be captured"; empty for a script's own mistake."""
    for kind in type(error).__mro__:
        if kind.__name__ in _NEEDS_VALUES:
            called = str(error.args[0] if error.args else error).partition("\n")[0]
            return f"{called}: {_NEEDS_VALUES[kind.__name__]}; {RECORD}"
    text = str(error)
    if isinstance(error, NotImplementedError) and ("no fake impl" in text or "Could not run '" in text):
        called = text.partition(": ")[0] if "no fake impl" in text else text.split("'")[1]
        return f"{called}: cannot run without data; {RECORD}"
    if isinstance(error, NotImplementedError) and "SparseTensorImpl" in text:
        return f"sparse tensors: cannot be without data; {RECORD}"
    if isinstance(error, NotImplementedError) and "HigherOrderOperator" in text:
        called = text.partition("HigherOrderOperator ")[2].partition(" ")[0]
        return f"{called}: torch has no rule to run it under a recorder; {RECORD}"
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in _OWN_KERNELS:
        return f"{error.name} brings GPU kernels of its own, which cannot be captured; {RECORD}"
    return ""


NEEDED = (
    "_C._profiler._RecordFunctionFast", "_C._dispatch_has_kernel_for_dispatch_key",
    "_C._dispatch_get_registrations_for_dispatch_key", "_C._current_autograd_node",
    "_C._disabled_torch_dispatch_impl", "_C._swap_tensor_impl", "autograd._get_sequence_nr",
    "autograd.profiler.profile", "Tag.pointwise", "optim.Optimizer.profile_hook_step", "library.Library",
    "ops.prim.device.default", "get_autocast_dtype", "float8_e4m3fn", "uint64",
    "_subclasses.fake_tensor.FakeTensorMode", "_subclasses.fake_tensor.FakeTensor",
)  # fmt: skip
"""Names under torch that the recorder uses; each is missing from some older version."""
TRIED = "2.13"
"""The version that the whole capture was tried with."""


def missing() -> list[str]:
    """What this torch lacks."""
    import torch._subclasses.fake_tensor

    lacking = [f"torch.{name}" for name in NEEDED if _reach(name) is None]
    if torch.distributed.is_available():
        import torch.distributed.distributed_c10d as c10d

        works = getattr(torch.distributed, "_Work", None)
        if works is None or not hasattr(works, "get_future"):
            lacking.append("futures of collectives written in Python")
        lacking += [f"c10d.{name}" for name in ("_world", "_get_default_group") if not hasattr(c10d, name)]
    return lacking


def _reach(name: str) -> Any:
    try:
        return reduce(getattr, name.split("."), torch)
    except AttributeError:
        return None


class SelfTestError(Exception):
    """The fake GPU does not behave as a GPU would."""


def run_self_test(recorder: Recorder, *, autocast: bool = True) -> None:
    """Forward and backward of one layer, under autocast where it must work; raises `SelfTestError`."""
    from stepsight.capturing.calls import CallRecord

    before, recorder.recording = recorder.recording, True
    try:
        with recorder:
            layer = torch.nn.Linear(8, 8).cuda()
            with torch.autocast("cuda", dtype=torch.float16) if autocast else contextlib.nullcontext():
                out = layer(torch.ones(4, 8, device="cuda"))
            out.float().sum().backward()
            gradient = layer.weight.grad
            _, together = _default_to_fused_or_foreach(list(layer.parameters()), False, use_fused=False)
        calls = [r.call for r in recorder.records if isinstance(r, CallRecord)]
        products = [call for call in calls if call.name in ("mm", "addmm")]
    finally:
        recorder.recording, recorder.records = before, []
    if gradient is None or gradient.device.type != "cuda":
        raise SelfTestError("a backward pass left no gradient on the GPU")
    wanted = "fp16" if autocast else "fp32"
    if len(products) != 2 or any(t.dtype != wanted for p in products for t in p.made_on_gpu):
        raise SelfTestError(f"a layer's two products did not come out in {wanted}")
    if not together:
        raise SelfTestError("an optimizer would not update its parameters together, as on a GPU")
