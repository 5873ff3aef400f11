"""Persistent GEMMs of compiled code without recorded sizes."""

from __future__ import annotations

from stepsight.trace.sizing.facts import Facts
from stepsight.trace.sizing.kernel_map import kernel_of
from tests.trace.making import Made

TOKENS, HIDDEN, WIDE = 4096, 512, 2048
UP, DOWN = "nvjet_tst_192x192_64x3_2x1_v_bz_coopB_NNN", "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
GRADIENT = "nvjet_tst_192x192_64x3_2x1_v_bz_coopB_splitK_NTN"
ROWS, POINTS = "triton_per_fused_mean_0", "triton_poi_fused_relu_1"


def _compiled(kernels: list[tuple[str, int]], number: int, region: str = "CompiledFunction") -> list[float]:
    """m, n and k of one of some kernels, each given with its first grid size."""
    made = Made(device="NVIDIA H100 80GB HBM3")
    made.op(region, 0, 50 * len(kernels))
    for i, (name, blocks) in enumerate(kernels):
        grid = [2, 66, 1] if name.startswith("nvjet") else [blocks, 1, 1]
        made.op("aten::mm", 50 * i + 1, 40)
        made.launch(50 * i + 5, 5, name, 50 * i + 12, 20, grid=grid, block=[128, 1, 1])
    linked = made.linked()
    launch = linked.launches[number]
    k = kernel_of(Facts(linked), launch, launch.gpu[0], "compute")[0]
    return [k.dim("m"), k.dim("n"), k.dim("k")]


def _points(width: int) -> tuple[str, int]:
    return POINTS, TOKENS * width // 1024


FEED_FORWARD = [
    (ROWS, TOKENS), _points(HIDDEN), (DOWN, 0), (ROWS, TOKENS),
    (UP, 0), _points(WIDE), (DOWN, 0), (ROWS, TOKENS),
]  # fmt: skip


def test_rows_and_points_beside_a_product_tell_its_tokens_and_widths():
    assert _compiled(FEED_FORWARD, 2) == [TOKENS, HIDDEN, HIDDEN]
    assert _compiled(FEED_FORWARD, 4) == [TOKENS, WIDE, HIDDEN]
    assert _compiled(FEED_FORWARD, 6) == [TOKENS, HIDDEN, WIDE]


def test_a_weights_gradient_sums_over_the_tokens():
    kernels = [*FEED_FORWARD, (GRADIENT, 0), (UP, 0), _points(WIDE)]
    assert _compiled(kernels, 8) == [WIDE, HIDDEN, TOKENS]


def test_a_weight_that_is_cast_just_before_tells_the_other_side():
    vocabulary = 50304
    kernels = [*FEED_FORWARD, (POINTS, vocabulary * HIDDEN // 1024), (UP, 0), (ROWS, TOKENS)]
    assert _compiled(kernels, 9) == [TOKENS, vocabulary, HIDDEN]


def test_an_optimizers_products_know_no_tokens():
    assert _compiled(FEED_FORWARD, 4, region="Torch-Compiled Region: 8/2")[0] != TOKENS
