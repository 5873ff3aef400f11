"""cuDNN's plain engine for image gradients: tiles of one image, named by a trace alone."""

import numpy as np

from stepsight.estimate import Estimates
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.columns import Batch
from stepsight.kernels.conv.products import ENGINE_NOTE, tile_values
from stepsight.kernels.models import KernelModels
from stepsight.program.variants import DGRAD_ENGINE as NAME


def gradient(image: float = 14.0, name: str = f"conv ({NAME})", dtype: str = "fp32", **sizes: float) -> Batch:
    dims = {"batch": 32.0, "c_in": 256.0, "c_out": 1024.0, "h": image, "kh": 1.0, "stride": 1.0, **sizes}
    return Batch.of("conv_dgrad", dtype, {key: np.array([value]) for key, value in dims.items()}, name)


def timed(batch: Batch) -> Estimates:
    return KernelModels.for_gpu(load_gpu("V100")).estimate_batch(batch)


def test_an_image_of_seven_by_seven_fills_two_tiles_of_32_pixels() -> None:
    assert tile_values(gradient(7.0))[0] == 32 * 64 * 256


def test_every_tap_makes_values_of_its_own() -> None:
    one, nine = (tile_values(gradient(28.0, kh=side, padding=(side - 1) / 2))[0] for side in (1.0, 3.0))
    assert nine == 9 * one


def test_only_a_named_engine_is_timed_as_one() -> None:
    named, unnamed = timed(gradient())[0], timed(gradient(name="conv"))[0]
    assert ENGINE_NOTE in named.note and ENGINE_NOTE not in unnamed.note
    assert named.time_us > unnamed.time_us


def test_tensor_cores_have_other_engines() -> None:
    assert ENGINE_NOTE not in timed(gradient(dtype="fp16"))[0].note
