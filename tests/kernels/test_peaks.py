"""No kernel is faster than its GPU's peak arithmetic, on any board, in any type, with any figure changed."""

from dataclasses import replace

import numpy as np
import pytest

from stepsight.hardware.gpus import gpu_catalogue
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.models import KernelModels
from stepsight.kernels.roofline import WINOGRAD_SAVES, peak_flops

TYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")
FAMILIES = ("gemm", "attention", "attention_backward", "conv", "conv_dgrad", "conv_wgrad")
VERSIONS = ("flash2", "cudnn", "flash3", "efficient", "flash1")


def large(family: str, dtype: str, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    n = 12

    def size(low: float, high: float, step: float = 8.0) -> np.ndarray:
        return np.ceil(np.exp(rng.uniform(np.log(low), np.log(high), n)) / step) * step

    if family == "gemm":
        dims = {key: size(256, 65536) for key in ("m", "n", "k")} | {"batch": size(1, 8, 1.0)}
    elif family.startswith("attention"):
        dims = {"batch": size(1, 32, 1.0), "heads": size(8, 64), "q": size(512, 65536),
                "head_dim": rng.choice([64.0, 80.0, 128.0, 256.0], n),
                "causal": rng.integers(0, 2, n).astype(float)}  # fmt: skip
    else:
        window = rng.choice([1.0, 3.0, 5.0, 7.0], n)
        dims = {"batch": size(8, 512), "c_in": size(8, 2048), "c_out": size(8, 2048), "h": size(14, 224, 1.0),
                "kh": window, "padding": window // 2, "stride": rng.choice([1.0, 2.0], n),
                "groups": rng.choice([1.0, 1.0, 8.0], n)}  # fmt: skip
    return Batch.of(family, dtype, dims, [str(rng.choice(VERSIONS)) for _ in range(n)])


def shares(spec: GpuSpec, seed: int) -> list[float]:
    models = KernelModels.for_gpu(spec)
    found = []
    for family in FAMILIES:
        for dtype in TYPES:
            batch = large(family, dtype, seed)
            peak = peak_flops(batch, spec)
            if family.startswith("conv") and dtype == "fp32":
                peak *= WINOGRAD_SAVES
            time_us = models.estimate_batch(batch).time_us
            found.append(float((batch.flops / time_us * 1e6 / peak).max()))
    return found


@pytest.mark.parametrize("name", sorted(gpu_catalogue()))
def test_no_kernel_is_faster_than_peak(name: str) -> None:
    assert max(shares(gpu_catalogue()[name].gpu, len(name))) <= 1 + 1e-9


@pytest.mark.parametrize(
    "name", ["A100-SXM4-80G", "H100-SXM-80G", "RTX-3090", "L40S", "MI300X", "B200-SXM-180G"]
)
@pytest.mark.parametrize(
    "change", [{"sms": 60}, {"clock_mhz": 900.0}, {"memory_gbps": 20000.0}, {"peak_tflops": 0.3}]
)
def test_nor_with_changed_figures(name: str, change: dict[str, float]) -> None:
    spec = gpu_catalogue()[name].gpu
    if "peak_tflops" in change:
        slower = {dtype: change["peak_tflops"] * tflops for dtype, tflops in spec.peak_tflops.items()}
        spec = replace(spec, peak_tflops=slower)
    else:
        spec = replace(spec, **change)  # type: ignore[arg-type]
    assert max(shares(spec, 3)) <= 1 + 1e-9
