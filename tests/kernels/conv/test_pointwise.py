"""1×1 convolutions: the product over pixels that they are."""

import numpy as np
import pytest

from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.conv.products import as_product, is_pointwise, turned
from stepsight.kernels.models import KernelModels


def convolutions(family: str = "conv", kh: tuple[float, ...] = (1.0, 3.0), dtype: str = "fp32") -> Batch:
    n = len(kh)
    sizes = {"batch": 32.0, "c_in": 256.0, "c_out": 1024.0, "h": 14.0, "stride": 1.0}
    dims = {key: np.full(n, value) for key, value in sizes.items()}
    return Batch.of(family, dtype, dims | {"kh": np.array(kh), "padding": (np.array(kh) - 1) / 2}, family)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("conv", (32 * 14 * 14, 1024, 256)),
        ("conv_dgrad", (32 * 14 * 14, 256, 1024)),
        ("conv_wgrad", (1024, 256, 32 * 14 * 14)),
    ],
)
def test_each_pass_is_its_own_product(family: str, sizes: tuple[int, ...]) -> None:
    product = as_product(convolutions(family, (1.0,)))
    assert tuple(product.dims[key][0] for key in ("m", "n", "k")) == sizes


def test_wider_windows_stay_convolutions() -> None:
    assert is_pointwise(convolutions()).tolist() == [True, False]


def test_mixed_windows_come_back_in_order() -> None:
    models = KernelModels.for_gpu(load_gpu("V100"))
    together = models.estimate_batch(convolutions(kh=(3.0, 1.0))).time_us
    alone = [models.estimate_batch(convolutions(kh=(k,))).time_us[0] for k in (3.0, 1.0)]
    assert together == pytest.approx(alone)


def test_a_pointwise_convolution_takes_as_long_as_its_product_from_the_faster_side_and_says_so() -> None:
    models = KernelModels.for_gpu(load_gpu("V100-PCIE-32G"))
    batch = convolutions(kh=(1.0,))
    product = as_product(batch)
    found = models.estimate_batch(batch)[0]
    sides = [models.estimate_batch(side)[0] for side in (product, turned(product))]
    assert found.time_us == min(side.time_us for side in sides)
    assert "1×1" in found.note and found.spread > min(side.spread for side in sides)


def test_on_tensor_cores_a_product_over_pixels_bounds_the_time() -> None:
    models = KernelModels.for_gpu(load_gpu("A100"))
    batch = convolutions(kh=(1.0,), dtype="tf32")
    assert models.estimate_batch(batch).time_us <= models.estimate_batch(as_product(batch)).time_us
