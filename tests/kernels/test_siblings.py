"""Boards of one chip: faster memory never makes them slower."""

from itertools import permutations

import numpy as np
import pytest

from stepsight.hardware.gpus import gpu_catalogue, load_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.machine import same_board
from stepsight.kernels.models import KernelModels

GPUS = [entry.gpu for entry in gpu_catalogue().values()]
MEASURED_IN_TRAINING = "GH200-96G"
"""Its own products were measured as training runs them, at a power limit of its own."""
SIBLINGS = [
    (slow.name, fast.name)
    for slow, fast in permutations(GPUS, 2)
    if (slow.architecture, slow.sms) == (fast.architecture, fast.sms)
    and slow.peak_tflops.get("bf16") == fast.peak_tflops.get("bf16") is not None
    and slow.memory_gbps < fast.memory_gbps
    and slow.clock_mhz <= fast.clock_mhz
    and MEASURED_IN_TRAINING not in (slow.name, fast.name)
    and slow.vendor == "nvidia"  # no chip of AMD's has tables
]


def sizes(low: float, high: float, keys: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {key: np.floor(np.exp(rng.uniform(np.log(low), np.log(high), 200))) for key in keys.split()}


@pytest.mark.parametrize(("slow", "fast"), SIBLINGS)
def test_faster_memory_never_takes_longer(slow: str, fast: str) -> None:
    shape = sizes(512, 16_384, "q") | sizes(1, 8, "batch") | {"heads": np.full(200, 32.0)}
    attention = shape | {"kv": shape["q"], "head_dim": np.full(200, 128.0), "causal": np.ones(200)}
    asked = [
        Batch.of(
            "gemm",
            dtype,
            {key: 8 * np.ceil(size / 8) for key, size in sizes(64, 65_536, "m n k").items()},
            name,
        )
        for dtype in ("bf16", "fp8")
        for name in ("linear", "dgrad", "wgrad")
        if dtype in load_gpu(slow).peak_tflops
    ]
    asked += [
        Batch.of("attention", "bf16", attention, "cudnn"),
        Batch.of("attention", "bf16", attention, "flash2"),
    ]
    before, after = (KernelModels.for_gpu(load_gpu(name)) for name in (slow, fast))
    for batch in asked:
        ratio = after.estimate_batch(batch).time_us / before.estimate_batch(batch).time_us
        assert ratio.max() <= 1 + 1e-6, (batch.family, batch.dtype, batch.kinds[0])


def test_boards_that_differ_in_their_links_have_the_same_kernels() -> None:
    assert same_board("H100-SXM-80G", load_gpu("H800")) and same_board("A100-SXM4-80G", load_gpu("A800"))
    assert not same_board("H100-SXM-80G", load_gpu("H200"))
    product = Batch.of("gemm", "bf16", sizes(512, 16_384, "m n k"), "linear")
    h100, h800 = (KernelModels.for_gpu(load_gpu(name)).estimate_batch(product) for name in ("H100", "H800"))
    assert h800.time_us == pytest.approx(h100.time_us)


def test_fp32_products_of_boards_without_a_table_follow_their_clocks() -> None:
    product = Batch.of(
        "gemm", "fp32", {"m": np.array([8192.0]), "n": np.array([1024.0]), "k": np.array([1024.0])}
    )
    measured, sxm2, sxm3 = (load_gpu(name) for name in ("V100-PCIE-32G", "V100-SXM2-32G", "V100-SXM3-32G"))
    times = [
        float(KernelModels.for_gpu(gpu).estimate_batch(product).time_us[0]) for gpu in (measured, sxm2, sxm3)
    ]
    assert times[0] / times[1] == pytest.approx(sxm2.clock_mhz / measured.clock_mhz, rel=0.02)
    assert times[0] / times[2] == pytest.approx(sxm3.clock_mhz / measured.clock_mhz, rel=0.03)
