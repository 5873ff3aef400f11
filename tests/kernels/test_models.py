"""The registry: every kernel gets a time, a source and a spread, in the order it was asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsight.estimate import Source
from stepsight.hardware.gpus import gpu_catalogue, load_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.families import FAMILIES
from stepsight.kernels.models import EMBEDDING_FAMILIES, KernelModels
from stepsight.kernels.roofline import speed_of_light_us
from stepsight.program.job import Kernel

SIZED = [name for name in FAMILIES if name not in EMBEDDING_FAMILIES]
ODD = st.sampled_from([1, 2, 3, 7, 13, 31, 64, 97, 128, 1000, 1021, 4096, 8191, 65_536, 1_000_003])


@pytest.fixture(scope="module")
def a100() -> KernelModels:
    return KernelModels.for_gpu(load_gpu("A100-SXM4-40G"))


@pytest.mark.parametrize("family", SIZED)
@pytest.mark.parametrize("gpu", ["V100", "H100", "L4", "MI300X"])
def test_every_family_has_a_time_on_every_gpu(family: str, gpu: str) -> None:
    sizes = dict.fromkeys(FAMILIES[family].dims, 64.0)
    found = KernelModels.for_gpu(load_gpu(gpu)).estimate([Kernel.of(family, "bf16", **sizes)])[0]
    assert 0 < found.time_us < 1e6
    assert found.spread > 0


@settings(max_examples=60, deadline=None)
@given(family=st.sampled_from(SIZED), data=st.data(), dtype=st.sampled_from(["fp32", "bf16", "fp8", "fp64"]))
def test_odd_shapes_never_give_nan_zero_or_less_than_a_hundredth_of_light(
    family: str, data: st.DataObject, dtype: str
) -> None:
    dims = {key: np.array([float(data.draw(ODD))]) for key in FAMILIES[family].dims}
    if "padding" in dims:  # light counts zeros beyond the window and pixels that a stride leaves out
        window = np.minimum(dims["kh"], dims["kw"])
        dims["padding"], dims["stride"] = (
            np.minimum(dims["padding"], window // 2),
            np.minimum(dims["stride"], window),
        )
    batch = Batch.of(family, dtype, dims)
    models = KernelModels.for_gpu(load_gpu("A100-SXM4-40G"))
    time_us = models.estimate_batch(batch).time_us[0]
    assert np.isfinite(time_us) and time_us >= 0.5
    assert time_us > 0.01 * speed_of_light_us(batch, models.spec)[0]


def test_answers_come_back_in_the_order_of_the_kernels(a100: KernelModels) -> None:
    kernels = [
        Kernel.of("gemm", "bf16", m=4096, n=4096, k=4096),
        Kernel.of("fill", bytes=10**9),
        Kernel.of("gemm", "bf16", m=64, n=64, k=64),
        Kernel.of("gemm", "fp32", operator="bmm", batch=8, m=64, n=64, k=64),
    ]
    together = a100.estimate(kernels).time_us
    alone = [a100.estimate([kernel]).time_us[0] for kernel in kernels]
    assert together == pytest.approx(alone)


def test_an_unknown_family_is_a_stated_default(a100: KernelModels) -> None:
    found = a100.estimate([Kernel.of("warp_drive", bytes=10**6)])[0]
    assert found.source is Source.DEFAULT
    assert "warp_drive" in found.note
    assert found.time_us > 0


def test_nothing_in_nothing_out(a100: KernelModels) -> None:
    assert len(a100.estimate([])) == 0


def test_a_measured_chip_is_learned_and_an_unmeasured_one_transferred() -> None:
    kernel = Kernel.of("gemm", "fp32", m=2048, n=2048, k=2048)
    assert KernelModels.for_gpu(load_gpu("V100")).estimate([kernel])[0].source is Source.LEARNED
    away = KernelModels.for_gpu(load_gpu("L4")).estimate([kernel])[0]
    assert away.source is Source.TRANSFERRED
    assert "scaled to this GPU" in away.note


def test_a_transferred_time_is_less_sure_than_a_learned_one() -> None:
    kernel = Kernel.of("gemm", "bf16", m=2048, n=2048, k=2048)
    here = KernelModels.for_gpu(load_gpu("H100")).estimate([kernel])[0]
    away = KernelModels.for_gpu(load_gpu("A40")).estimate([kernel])[0]
    assert away.spread > here.spread


def test_far_outside_the_fitted_range_the_estimate_says_so(a100: KernelModels) -> None:
    found = a100.estimate([Kernel.of("gemm", "fp32", m=2_000_000, n=4096, k=4096)])[0]
    assert "outside measured shapes: ±" in found.note
    light = 2 * 2e6 * 4096 * 4096 / 19.5e6
    assert light < found.time_us < 2.5 * light


def test_more_memory_bandwidth_makes_a_streaming_kernel_faster() -> None:
    kernel = Kernel.of("elementwise", operator="add", elements=10**8, read_bytes=8e8, write_bytes=4e8)
    times = [
        KernelModels.for_gpu(load_gpu(gpu)).estimate([kernel]).time_us[0]
        for gpu in ("T4", "V100", "A100", "H100")
    ]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("family", ["elementwise", "copy_h2d", "fill", "concat", "reduce", "optimizer"])
@pytest.mark.parametrize("gpu", ["V100", "A100", "H100"])
def test_more_bytes_never_take_less_time(family: str, gpu: str) -> None:
    sizes = np.geomspace(1e3, 1e10, 200)
    keys = [key for key in FAMILIES[family].dims if key not in ("tensors", "inputs")]
    columns = {key: sizes if key not in ("rows",) else np.ones(200) for key in keys}
    times = KernelModels.for_gpu(load_gpu(gpu)).estimate_batch(Batch.of(family, "fp32", columns)).time_us
    assert (np.diff(times) >= 0).all()


@pytest.mark.parametrize(("gpu", "dtype"), [("V100", "fp32"), ("A100", "fp32"), ("H100", "bf16")])
def test_a_gemm_eight_times_as_large_takes_longer(gpu: str, dtype: str) -> None:
    models = KernelModels.for_gpu(load_gpu(gpu))
    edges = np.array([64, 128, 256, 512, 1024, 2048, 4096, 8192], dtype=float)
    times = models.estimate_batch(Batch.of("gemm", dtype, {"m": edges, "n": edges, "k": edges})).time_us
    assert (np.diff(times) > 0).all()


def test_a_backward_of_attention_takes_longer_than_its_forward() -> None:
    models = KernelModels.for_gpu(load_gpu("A100-80G"))
    sizes = {"batch": 4, "heads": 16, "kv_heads": 16, "q": 2048, "kv": 2048, "head_dim": 128, "causal": 1}
    forward, backward = models.estimate(
        [Kernel.of("attention", "bf16", **sizes), Kernel.of("attention_backward", "bf16", **sizes)]
    ).time_us
    assert 2 < backward / forward < 4


def test_every_gpu_of_the_catalogue_is_served() -> None:
    kernels = [
        Kernel.of("gemm", dtype, m=512, n=512, k=512) for dtype in ("fp32", "tf32", "fp16", "bf16", "fp8")
    ]
    for entry in gpu_catalogue().values():
        times = KernelModels.for_gpu(entry.gpu).estimate(kernels).time_us
        assert np.isfinite(times).all() and (times > 0).all(), entry.gpu.name


def test_half_precision_never_takes_longer_than_full() -> None:
    rng = np.random.default_rng(1)
    dims = {key: np.floor(np.exp(rng.uniform(np.log(64), np.log(8192), 300))) for key in ("m", "n", "k")}
    for gpu in ("V100", "A100", "H100", "L4"):
        models = KernelModels.for_gpu(load_gpu(gpu))
        full = models.estimate_batch(Batch.of("gemm", "fp32", dims, "linear")).time_us
        half = models.estimate_batch(Batch.of("gemm", "fp16", dims, "linear")).time_us
        clear = half > 20.0
        assert (half[clear] <= full[clear] * (1 + 1e-9)).all()


@pytest.mark.parametrize("gpu", ["P100", "V100", "A100", "H100"])
@pytest.mark.parametrize("size", ["m", "n", "k"])
def test_twice_the_work_never_takes_less_time(gpu: str, size: str) -> None:
    rng = np.random.default_rng(2)
    dims = {key: np.floor(np.exp(rng.uniform(np.log(256), np.log(16_384), 300))) for key in ("m", "n", "k")}
    models = KernelModels.for_gpu(load_gpu(gpu))
    once = models.estimate_batch(Batch.of("gemm", "fp32", dims, "linear")).time_us
    twice = models.estimate_batch(Batch.of("gemm", "fp32", dims | {size: 2 * dims[size]}, "linear")).time_us
    assert (twice >= once).all()


def test_kernels_timed_in_turns_are_timed_as_together() -> None:
    models = KernelModels.for_gpu(load_gpu("L4"))
    sizes = np.tile(np.array([256.0, 777.0, 4096.0, 40_000.0]), 9000)
    many = models.estimate_batch(Batch.of("gemm", "fp32", {"m": sizes, "n": sizes, "k": sizes}, "linear"))
    few = models.estimate_batch(Batch.of("gemm", "fp32", dict.fromkeys("mnk", sizes[:4]), "linear"))
    assert many.time_us[-4:] == pytest.approx(few.time_us, rel=1e-5)
    assert many.notes[len(sizes) - 1] == few.notes[3]
