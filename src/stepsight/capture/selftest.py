"""Whether this torch has what a capture needs, and whether it really runs on the fake GPU.

The first is asked by feature, not by version. The second by a tiny autocast step: without the device guard
autocast silently does nothing, and a step would be predicted in the wrong precision.
"""

from __future__ import annotations

import contextlib
from functools import reduce
from typing import Any

import torch
from torch.optim.optimizer import _default_to_fused_or_foreach

from stepsight.capture.recording.calls import CallRecord
from stepsight.capture.recording.mode import Recorder

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


def run(recorder: Recorder, *, autocast: bool = True) -> None:
    """Forward and backward of one layer, under autocast where it must work; raises `SelfTestError`."""
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
