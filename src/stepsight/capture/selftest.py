"""Whether this torch really runs on the fake GPU: a tiny autocast step must show half-precision products.

Without the device guard autocast silently does nothing, and a step would be predicted in the wrong precision.
"""

from __future__ import annotations

import torch

from stepsight.capture.recording.calls import CallRecord
from stepsight.capture.recording.mode import Recorder


class SelfTestError(Exception):
    """The fake GPU does not behave as a GPU would."""


def run(recorder: Recorder) -> None:
    """Forward, backward and update of one layer under autocast; raises `SelfTestError`."""
    before, recorder.recording = recorder.recording, True
    try:
        with recorder:
            layer = torch.nn.Linear(8, 8).cuda()
            with torch.autocast("cuda", dtype=torch.float16):
                out = layer(torch.ones(4, 8, device="cuda"))
            out.float().sum().backward()
            gradient = layer.weight.grad
        products = [
            r.call for r in recorder.records if isinstance(r, CallRecord) and r.call.name in ("mm", "addmm")
        ]
    finally:
        recorder.recording, recorder.records = before, []
    if gradient is None or gradient.device.type != "cuda":
        raise SelfTestError("a backward pass left no gradient on the GPU")
    if len(products) != 2 or any(t.dtype != "fp16" for p in products for t in p.made_on_gpu):
        raise SelfTestError("autocast did not make products in half precision")
