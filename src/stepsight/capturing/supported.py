"""What can be captured: whether this torch runs on the fake GPU, which a tiny autocast step shows, and what
stops a script with one line instead of being captured wrongly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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


class SelfTestError(Exception):
    """The fake GPU does not behave as a GPU would."""


def run_self_test(recorder: Recorder) -> None:
    """Forward and backward of one layer under autocast; raises `SelfTestError`."""
    from stepsight.capturing.calls import CallRecord

    recorder.recording = True
    with recorder:
        layer = torch.nn.Linear(8, 8).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            out = layer(torch.ones(4, 8, device="cuda"))
        out.float().sum().backward()
        gradient = layer.weight.grad
        _, together = _default_to_fused_or_foreach(list(layer.parameters()), False, use_fused=False)
    calls = [r.call for r in recorder.records if isinstance(r, CallRecord)]
    products = [call for call in calls if call.name in ("mm", "addmm")]
    if gradient is None or gradient.device.type != "cuda":
        raise SelfTestError("a backward pass left no gradient on the GPU")
    if len(products) != 2 or any(t.dtype != "fp16" for p in products for t in p.made_on_gpu):
        raise SelfTestError("a layer's two products did not come out in fp16")
    if not together:
        raise SelfTestError("an optimizer would not update its parameters together, as on a GPU")
