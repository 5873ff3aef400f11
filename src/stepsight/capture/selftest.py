"""Whether this torch really runs on the fake GPU: a tiny autocast step must show half-precision products.

Without the device guard autocast silently does nothing, and a step would be predicted in the wrong precision.
"""

from __future__ import annotations

import contextlib

import torch
from torch.optim.optimizer import _default_to_fused_or_foreach

from stepsight.capture.recording.calls import CallRecord
from stepsight.capture.recording.mode import Recorder


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
