"""A GPU with changed figures: time follows the speed of light, whatever models know the real one."""

from dataclasses import replace

import numpy as np
import pytest

from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import gpu_catalogue, load_gpu
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.changed_gpu import catalogue_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.families import FAMILIES
from stepsight.kernels.models import EMBEDDING_FAMILIES, KernelModels
from stepsight.platform.load import load_platform
from stepsight.program.variants import Kind

SIZED = [name for name in FAMILIES if name not in EMBEDDING_FAMILIES]
LARGE = {"m": np.array([8192.0]), "n": np.array([4096.0]), "k": np.array([14336.0])}


def batches(dtype: str) -> list[Batch]:
    rng = np.random.default_rng(7)
    found = []
    for family in SIZED:
        most = 512 if family.startswith("conv") else 8192
        dims = {key: np.floor(np.exp(rng.uniform(0, np.log(most), 12))) for key in FAMILIES[family].dims}
        dims |= {
            key: np.floor(np.exp(rng.uniform(np.log(1e3), np.log(1e9), 12))) for key in dims if "bytes" in key
        }
        found.append(Batch.of(family, dtype, dims))
    kinds = [Kind(version) for version in ["flash2", "cudnn", "flash3", "efficient"] * 3]
    return [replace(b, kinds=kinds) if b.family.startswith("attention") else b for b in found]


def times(spec: GpuSpec, asked: list[Batch]) -> FloatArray:
    models = KernelModels.for_gpu(spec)
    return np.concatenate([models.estimate_batch(batch).time_us for batch in asked])


def changes(name: str) -> dict[str, GpuSpec]:
    spec = load_gpu(name)

    def given(*fields: str) -> GpuSpec:
        return load_platform(f"1x{name}", fields).spec.gpu

    return {
        "twice the peaks": replace(spec, peak_tflops={d: 2 * t for d, t in spec.peak_tflops.items()}),
        "twice the bandwidth": replace(spec, memory_gbps=2 * spec.memory_gbps),
        "twice the multiprocessors": given(f"gpu.sms={2 * spec.sms}"),
        "twice the multiprocessors at one peak": replace(spec, sms=2 * spec.sms),
        "twice the clock": given(f"gpu.clock_mhz={2 * spec.clock_mhz}"),
    }


@pytest.mark.parametrize("name", gpu_catalogue())
def test_twice_of_anything_never_takes_longer(name: str) -> None:
    for dtype in ("fp32", "bf16"):
        asked = batches(dtype)
        before = times(load_gpu(name), asked)
        for what, spec in changes(name).items():
            assert (times(spec, asked) <= before * (1 + 1e-9)).all(), (what, dtype)


@pytest.mark.parametrize(
    "name", ["A100-SXM4-80G", "H100-SXM-80G", "H200-SXM-141G", "B200-SXM-180G", "MI300X"]
)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp8"])
def test_a_large_product_takes_half_with_twice_the_peak(name: str, dtype: str) -> None:
    spec = load_gpu(name)
    if dtype not in spec.peak_tflops:
        pytest.skip("no such unit")
    product = [Batch.of("gemm", dtype, LARGE, "linear")]
    twice = replace(spec, peak_tflops=spec.peak_tflops | {dtype: 2 * spec.peak_tflops[dtype]})
    assert times(twice, product) == pytest.approx(times(spec, product) / 2, rel=0.02)


@pytest.mark.parametrize("name", gpu_catalogue())
@pytest.mark.parametrize("share", [0.03, 0.3, 1.0])
def test_no_product_runs_above_peak(name: str, share: float) -> None:
    spec = load_gpu(name)
    spec = replace(spec, peak_tflops={dtype: share * tflops for dtype, tflops in spec.peak_tflops.items()})
    for dtype in set(spec.peak_tflops) - {"fp64"}:  # timed by tables of fp32
        product = Batch.of("gemm", dtype, LARGE, "linear")
        at_peak = product.flops / spec.peak_flops(dtype) * 1e6
        assert (times(spec, [product]) >= at_peak).all(), dtype


def test_a_renamed_board_with_another_peak_is_no_other_chip() -> None:
    spec = load_gpu("H100")
    twice = {dtype: 2 * tflops for dtype, tflops in spec.peak_tflops.items()}
    mine = replace(spec, name="mine", aliases=(), peak_tflops=twice)
    product = [Batch.of("gemm", "bf16", LARGE, "linear")]
    assert times(mine, product) == pytest.approx(times(spec, product) / 2, rel=0.1)


@pytest.mark.parametrize("name", gpu_catalogue())
def test_nothing_is_scaled_on_a_gpu_as_it_is(name: str) -> None:
    assert catalogue_gpu(load_gpu(name)) is None
