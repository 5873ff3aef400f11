"""Convolutions on tensor cores: tiles, steps of the reduction, and copies around them."""

import numpy as np
import pytest

from stepsight.estimate import Estimates
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.models import KernelModels
from stepsight.kernels.roofline import speed_of_light_us

FAMILIES = ("conv", "conv_dgrad", "conv_wgrad")


def conv(family: str, *, batch: float = 256, c_in: float = 256, c_out: float = 256, image: float = 28,
         side: float = 3, stride: float = 1, dtype: str = "tf32", reordered: float = 0,
         padding: float | None = None) -> Batch:  # fmt: skip
    sizes = {"batch": batch, "c_in": c_in, "c_out": c_out, "h": image, "kh": side, "stride": stride,
             "padding": (side - 1) // 2 if padding is None else padding, "reordered": reordered}  # fmt: skip
    return Batch.of(family, dtype, {key: np.array([float(value)]) for key, value in sizes.items()})


def timed(batch: Batch, gpu: str = "H100-SXM") -> Estimates:
    return KernelModels.for_gpu(load_gpu(gpu)).estimate_batch(batch)


def time_us(family: str, gpu: str = "H100-SXM", **sizes: float | str) -> float:
    return float(timed(conv(family, **sizes), gpu).time_us[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("gpu", ["H100-SXM", "A100-SXM4-80G", "MI300X"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("size", "values"), [
    ("side", (3, 5, 7)), ("c_in", (64, 128, 512)), ("c_out", (64, 128, 512)), ("batch", (8, 64, 512)),
    ("image", (14, 28, 56)),
])  # fmt: skip
def test_more_work_takes_longer(gpu: str, family: str, size: str, values: tuple[int, ...]) -> None:
    times = [time_us(family, gpu, **{size: value}) for value in values]
    assert times == sorted(times)


@pytest.mark.parametrize("dtype", ["tf32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_beats_the_speed_of_light(family: str, dtype: str) -> None:
    batch = conv(family, dtype=dtype)
    assert timed(batch).time_us[0] > speed_of_light_us(batch, load_gpu("H100-SXM"))[0]


def test_wide_layers_come_nearer_to_the_peak_than_narrow_ones() -> None:
    def reached(channels: float) -> float:
        batch = conv("conv", c_in=channels, c_out=channels)
        return float(speed_of_light_us(batch, load_gpu("H100-SXM"))[0] / timed(batch).time_us[0])

    assert reached(512) > 0.8 > reached(64)


def test_three_channels_cost_a_whole_step_a_tap() -> None:
    three, whole = (time_us("conv", c_in=c, c_out=768, side=15, stride=15, image=225, batch=4, dtype="bf16")
                    for c in (3, 32))  # fmt: skip
    assert three == pytest.approx(whole, rel=0.05)


def test_a_first_layer_shares_a_step_among_taps() -> None:
    three, whole = (time_us("conv", c_in=c, c_out=64, side=7, stride=1, image=224, batch=64, dtype="fp16")
                    for c in (3, 32))  # fmt: skip
    assert three < 0.4 * whole


def test_an_unpadded_head_has_as_many_taps_as_outputs_that_read_a_pixel() -> None:
    head = {"c_in": 512, "c_out": 4096, "side": 7, "image": 7, "batch": 256, "dtype": "fp16", "padding": 0}
    forward, gradient = (time_us(family, "RTX-3090", **head) for family in ("conv", "conv_dgrad"))
    assert gradient < 2 * forward


def test_images_by_channel_are_copied_on_tensor_cores_only() -> None:
    assert time_us("conv", reordered=1) > 1.1 * time_us("conv")
    assert time_us("conv", reordered=1, side=1) > 1.1 * time_us("conv", side=1)
    assert time_us("conv", "V100", reordered=1, dtype="fp32") == time_us("conv", "V100", dtype="fp32")


@pytest.mark.parametrize(("side", "copied"), [(3, True), (1, False)])
def test_forwards_in_half_precision_copy_the_image_of_windows_alone(side: int, copied: bool) -> None:
    narrow, wide = (
        time_us("conv", side=side, dtype="fp16", reordered=1, c_out=c_out)
        - time_us("conv", side=side, dtype="fp16", c_out=c_out)
        for c_out in (256, 512)
    )
    assert wide == pytest.approx(narrow, abs=1e-6)  # results are written by channel
    assert (narrow > 0) == copied


def test_channels_that_do_not_fill_a_load_are_copied_into_padded_ones() -> None:
    uneven, even = (time_us("conv", c_in=c, c_out=c, dtype="fp16", image=112) for c in (60, 64))
    assert uneven > 1.2 * even
    assert time_us("conv", c_in=60, c_out=60, side=1, dtype="fp16") < 1.1 * time_us(
        "conv", c_in=64, c_out=64, side=1, dtype="fp16"
    )


def test_half_precision_is_faster_than_tf32() -> None:
    for family in FAMILIES:
        assert time_us(family, dtype="bf16") < time_us(family)


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("gpu", ["RTX-6000-Ada", "A100-SXM4-80G", "H100-PCIE"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tf32_is_allowed_and_not_required(family: str, gpu: str, side: int) -> None:
    sizes: dict[str, float] = {"c_in": 64, "c_out": 256, "image": 56, "side": side, "reordered": 1}
    in_tf32, in_fp32 = (time_us(family, gpu, dtype=dtype, **sizes) for dtype in ("tf32", "fp32"))
    assert in_tf32 <= in_fp32
