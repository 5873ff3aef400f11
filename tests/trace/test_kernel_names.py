"""What names and grids state where nothing was recorded; all else keeps its measured time."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.constants import area
from stepsight.prediction.traced.predict import predict_trace
from stepsight.program.job import Kernel, Sizing
from stepsight.program.observation import Observation
from stepsight.trace.kernel_names import short_name
from tests.trace.making import Made, made_run, sized

C = area("traces")

FLASH = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 64, 4, false, "
    "false, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<64, 128, 64, 4, cutlass::bfloat16_t> >, "
    "false, true, false, false>(pytorch_flash::Flash_fwd_params)"
)


def observed(
    name: str, grid: list[int], block: list[int], op: str = "aten::something"
) -> tuple[Kernel, Observation]:
    made = Made()
    made.op(op, 0.0, 40)
    made.launch(5, 5, name, 12, 20, grid=grid, block=block)
    return sized(made)[0]


def test_an_elementwise_grid_counts_elements() -> None:
    k, seen = observed("vectorized_elementwise_kernel<4, mul>", [10, 1, 1], [128, 1, 1])
    assert (k.dim("elements"), k.size_spread, seen.opaque) == (10 * 128 * 4, C.COUNTED_SPREAD, False)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        (FLASH, "attention"),
        ("multi_tensor_apply_kernel<TensorListMetadata<2>>", "optimizer"),
        ("volta_sgemm_128x64_tn", "gemm"),
    ],
)
def test_a_kernel_of_unknown_size_keeps_its_kind(name: str, family: str) -> None:
    k, seen = observed(name, [5, 16, 12], [128, 1, 1])
    assert (k.family, k.sizing, seen.opaque) == (family, Sizing.UNKNOWN, True)


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("volta_sgemm_128x64_tn", [2, 4, 1]),
        ("CatArrayBatchedCopy<float>", [320, 4, 1]),
        ("reduce_kernel<512, 1>", [64, 1, 1]),
        ("indexing_backward_kernel<float>", [520, 1, 8]),
        ("vectorized_elementwise_kernel<4, f>", []),
        ("some_fused_thing", [132, 1, 1]),
    ],
)
def test_what_no_name_or_grid_states_keeps_its_measured_time(name: str, grid: list[int]) -> None:
    k, seen = observed(name, grid, [128, 1, 1])
    assert k.sizing is Sizing.UNKNOWN and seen.opaque and seen.measured_us == 20


def unshaped_training() -> Made:
    """Three steps that the GPU bounds: one product each, without shapes."""
    made = Made()
    for number in range(3):
        at = 2000.0 * number
        made.step(number, at, 1900)
        made.op("aten::mm", at + 1, 20)
        made.launch(at + 5, 8, "volta_sgemm_128x64_tn", at + 20, 1900, grid=[32, 64, 1], block=[128, 1, 1])
    return made


def test_a_step_without_sizes_keeps_the_times_of_the_trace() -> None:
    kept = predict_trace(made_run(unshaped_training()), models_only=True)
    assert kept.coverage.share_by_source["trace"] == 1.0


@pytest.mark.parametrize("how", [{}, {"models_only": True}])
def test_unsized_products_scale_with_the_peak_on_another_gpu(how: dict[str, Any]) -> None:
    run = made_run(unshaped_training())
    answers = (predict_trace(run, platform, **how) for platform in (None, "1xH100-SXM"))
    here, there = (answer.ranks[0].gpu_active_us for answer in answers)
    assert 0.15 < there / here < 0.6  # 15.7 against 67 TFLOP/s in fp32


def test_names_lose_their_template_arguments() -> None:
    assert short_name("void at::native::(anonymous namespace)::f<4, float>(int)") == "at::native::f"
