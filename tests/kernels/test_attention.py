"""Fused attention: masks and windows by geometry, versions by name, times that grow as physics says."""

import numpy as np
import pytest

from stepsight.estimate import Source
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.attention import version_on
from stepsight.kernels.columns import Batch
from stepsight.kernels.families import tiled_pairs, visible_pairs
from stepsight.kernels.models import KernelModels
from stepsight.platform.load import load_platform
from stepsight.program.job import Kernel
from stepsight.program.variants import classify


def dims(q: float, kv: float, causal: float = 0.0, window: float = 0.0) -> dict[str, np.ndarray]:
    return {k: np.array([v]) for k, v in (("q", q), ("kv", kv), ("causal", causal), ("window", window))}


def time_us(
    gpu: str, family: str = "attention", name: str = "flash2", dtype: str = "bf16", **sizes: float
) -> float:
    shape = {"batch": 4, "heads": 32, "q": 4096, "head_dim": 128, "causal": 1} | sizes
    kernel = Kernel.of(family, dtype, operator=name, **shape)
    return KernelModels.for_gpu(load_gpu(gpu)).estimate([kernel])[0].time_us


@pytest.mark.parametrize(("q", "kv", "window"), [(7, 7, 0), (7, 7, 3), (5, 9, 0), (5, 9, 4), (6, 6, 20)])
def test_visible_pairs_are_those_of_the_mask(q: int, kv: int, window: int) -> None:
    seen = sum(
        1 for i in range(q) for j in range(kv) if j <= i + kv - q and (window == 0 or j > i + kv - q - window)
    )
    assert visible_pairs(dims(q, kv, 1, window))[0] == seen


def test_tiles_compute_at_least_the_visible_pairs() -> None:
    for causal, window in ((0, 0), (1, 0), (1, 512), (0, 512)):
        shape = dims(4096, 4096, causal, window)
        assert tiled_pairs(shape)[0] >= visible_pairs(shape)[0]


@pytest.mark.parametrize(
    ("name", "architecture", "version"),
    [
        ("flash_attn_3::fwd", "hopper", "flash3"),
        ("flash3", "ampere", "flash2"),
        ("aten::_scaled_dot_product_cudnn_attention", "hopper", "cudnn"),
        ("aten::_efficient_attention_forward", "ampere", "efficient"),
        ("attention", "hopper", "flash2"),
        ("flash2", "volta", "efficient"),
    ],
)
def test_the_version_follows_from_operator_and_generation(name: str, architecture: str, version: str) -> None:
    assert version_on(classify("attention", name).variant, architecture) == version


def test_newer_versions_are_faster_where_they_exist() -> None:
    assert time_us("H100", name="flash3") < time_us("H100") < time_us("H100", name="efficient")
    assert time_us("A100-SXM4-80G", name="flash3") == time_us("A100-SXM4-80G")


def test_the_backward_has_a_model_of_its_own() -> None:
    forward, backward = (time_us("A100-SXM4-80G", family) for family in ("attention", "attention_backward"))
    assert 2.5 < backward / forward < 4.0


@pytest.mark.parametrize("gpu", ["A100-SXM4-80G", "H100", "B200"])
@pytest.mark.parametrize("family", ["attention", "attention_backward"])
def test_more_work_takes_longer(gpu: str, family: str) -> None:
    lengths = [time_us(gpu, family, q=q) for q in (1024, 2048, 4096, 8192, 16384, 65536)]
    assert lengths == sorted(lengths)
    assert time_us(gpu, family) < time_us(gpu, family, causal=0)
    assert time_us(gpu, family, q=16384, window=1024) < 0.3 * time_us(gpu, family, q=16384)


def test_causal_costs_half_of_the_pairs_when_long() -> None:
    ratio = time_us("H100", q=32768) / time_us("H100", q=32768, causal=0)
    assert ratio == pytest.approx(0.5, abs=0.05)


def test_known_rates_are_met() -> None:
    """FlashAttention-2 with heads of 128, 16 k, no mask: 225 (A100) and 370 TFLOP/s (H100) by its paper.

    A100's table is fitted at the lower of the two clock rates it was measured at, 0.88 of the other.
    """
    flops = 4 * 32 * 16384**2 * 128
    for gpu, tflops in (("A100-SXM4-80G", 225 * 0.88), ("H100", 370)):
        reached = flops / time_us(gpu, batch=1, q=16384, causal=0) / 1e6
        assert reached == pytest.approx(tflops, rel=0.12)


def test_a_chip_that_was_not_measured_says_whom_it_goes_by() -> None:
    batch = Batch.of("attention_backward", "bf16", {"q": np.array([4096.0]), "head_dim": np.array([128.0])})
    answer = KernelModels.for_gpu(load_gpu("H100")).estimate_batch(batch)[0]
    assert answer.source is Source.TRANSFERRED
    assert "A100" in answer.note


def test_another_vendors_attention_is_in_doubt() -> None:
    kernel = Kernel.of(
        "attention", "bf16", operator="flash2", batch=4, heads=32, q=4096, head_dim=128, causal=1
    )
    doubt = {g: KernelModels.for_gpu(load_gpu(g)).estimate([kernel])[0].spread for g in ("MI300X", "B200")}
    assert doubt["MI300X"] > 0.4 > doubt["B200"]


def test_a_window_never_costs_time() -> None:
    models = load_platform("1xH100-SXM-80G").kernels
    for family in ("attention", "attention_backward"):
        sizes = {"batch": 1, "heads": 32, "kv_heads": 8, "q": 8192, "kv": 8192, "head_dim": 128, "causal": 1}
        kernels = [Kernel.of(family, "bf16", operator="cudnn", **sizes)]
        kernels += [Kernel.of(family, "bf16", operator="cudnn", **sizes, window=w) for w in (8000, 4096, 512)]
        times = models.estimate(kernels).time_us.tolist()
        assert times == sorted(times, reverse=True)
        assert times[2] < 0.8 * times[0]
