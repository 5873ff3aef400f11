"""Copies around convolutions on tensor cores, which read images by pixel (channels_last).

cuDNN and MIOpen bring images that lie by channel into that order before their kernel and the result back
after it; a forward copies image and result, a gradient the two that it reads or writes.
"""

from __future__ import annotations

import numpy as np

from stepsight.estimate import Estimates, FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.families import conv_output

READS_BY_CHANNEL = frozenset({"fp16", "bf16"})
"""Types in which cuDNN's forward kernels read images by channel themselves: forwards of 30 image models in
NCHW on an RTX 4090 (cuDNN 9) leave no time for copies. With cuDNN 8.3 they did copy: about 5 % of a training
step in NCHW on an RTX 3090."""
SHARE = {"nvidia": 0.86, "amd": 0.5}
"""Share of memory bandwidth: VGG-13 on H100, fp32, 0.83 to 0.88; ResNet-18 on MI300X, bf16, 0.35 to 0.56
(public traces)."""


def has_tensor_cores(dtype: str, spec: GpuSpec) -> bool:
    """Whether the GPU multiplies this dtype faster than fp32."""
    return dtype in ("tf32", "fp16", "bf16") and spec.peak_flops(dtype) > 1.5 * spec.peak_flops("fp32")


def copies_us(batch: Batch, spec: GpuSpec) -> FloatArray:
    """What is read copied into the order of pixels, what is written copied back; zero where nothing is."""
    d = batch.dims
    if batch.family == "conv" and spec.vendor == "nvidia" and batch.dtype in READS_BY_CHANNEL:
        return np.zeros(len(batch))
    if not has_tensor_cores(batch.dtype, spec) or not (d["reordered"] > 0).any():
        return np.zeros(len(batch))
    high, wide = conv_output(d)
    image = d["batch"] * d["c_in"] * d["h"] * d["w"]
    result = d["batch"] * d["c_out"] * high * wide
    moved = 2.0 * batch.element_bytes * (image + result)
    share = SHARE.get(spec.vendor, SHARE["nvidia"])
    return np.asarray(np.where(d["reordered"] > 0, moved / (spec.memory_gbps * 1e3 * share), 0.0))


def with_copies(answer: Estimates, batch: Batch, spec: GpuSpec) -> Estimates:
    """The answers with the copies around them."""
    copies = copies_us(batch, spec)
    return Estimates(answer.time_us + copies, answer.source, answer.spread, answer.notes)
