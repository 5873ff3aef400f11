"""No kernel of any GPU of the catalogue, in any type, computes faster than its GPU's peak."""

from __future__ import annotations

import numpy as np
import pytest

from stepsight.hardware.gpus import gpu_catalogue
from stepsight.kernels.families import FAMILIES
from stepsight.platform.load import load_platform
from stepsight.program.job import Kernel

ROUNDING = 1e-9
SIZES = (128, 1000, 4096, 16384)
CONV = {"c_in": 256, "c_out": 256, "h": 56, "w": 56, "kh": 3, "kw": 3, "stride": 1, "padding": 1, "groups": 1}
HEADS = {"heads": 32, "kv_heads": 32, "head_dim": 128}


def kernels(dtype: str) -> list[Kernel]:
    """Matrix products from small to large; convolutions by Winograd's algorithm need fewer products."""
    made = [Kernel.of("gemm", dtype, batch=1, m=m, n=m, k=k) for m in SIZES for k in SIZES]
    made += [Kernel.of("gemm", dtype, operator="bmm", batch=64, m=m, n=m, k=m) for m in SIZES[:3]]
    if dtype in ("fp16", "bf16"):
        for length in (512, 4096, 16384):
            sizes = {"batch": 4, "q": length, "kv": length, "causal": 0.0, **HEADS}
            made += [Kernel.of(family, dtype, **sizes) for family in ("attention", "attention_backward")]
    if dtype != "fp32":
        families = ("conv", "conv_dgrad", "conv_wgrad")
        made += [Kernel.of(family, dtype, batch=64, **CONV) for family in families]
    return made


@pytest.mark.parametrize("gpu", sorted(gpu_catalogue()))
def test_nothing_is_faster_than_its_peak(gpu: str) -> None:
    platform = load_platform(f"1x{gpu}")
    spec = platform.spec.gpu
    for dtype in (d for d in ("fp32", "tf32", "fp16", "bf16", "fp8") if d in spec.peak_tflops):
        listed = kernels(dtype)
        times_us = platform.kernels.estimate(listed).time_us
        flops = [
            float(FAMILIES[k.family].flops({n: np.array([k.dim(n)]) for n in FAMILIES[k.family].dims})[0])
            for k in listed
        ]
        reached = np.array(flops) / times_us / 1e-6 / spec.peak_flops(dtype)
        fastest = int(np.argmax(reached))
        shown = f"{dtype}: {listed[fastest]} reaches {reached[fastest]:.1%} of the peak"
        assert reached[fastest] <= 1 + ROUNDING, shown
