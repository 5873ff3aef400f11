"""Sizes that a kernel's name and its neighbours tell where a trace recorded no shapes."""

from __future__ import annotations

from stepsight.program.job import Kernel
from stepsight.trace.sizing.facts import Facts
from stepsight.trace.sizing.kernel_map import kernel_of
from tests.trace.making import Made

FLASH = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 64, 4, false, "
    "false, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<64, 128, 64, 4, cutlass::bfloat16_t> >, "
    "false, true, false, false>(pytorch_flash::Flash_fwd_params)"
)
ACTIVATION = "vectorized_elementwise_kernel<4, add>"


def sized(*kernels: tuple[str, list[int], list[int]], number: int = 0) -> Kernel:
    """One of several kernels on a stream, each under an operator that recorded nothing."""
    made = Made()
    for i, (kernel, grid, block) in enumerate(kernels):
        made.op("aten::something", 50.0 * i, 40)
        made.launch(50.0 * i + 5, 5, kernel, 50.0 * i + 12, 20, grid=grid, block=block)
    linked = made.linked()
    launch = linked.launches[number]
    return kernel_of(Facts(linked), launch, launch.gpu[0], "compute")[0]


def test_a_softmax_in_registers_names_its_rows_length():
    kernel = (
        "void scaled_upper_triang_masked_softmax_warp_forward<c10::Half, c10::Half, float, 11>(c10::Half*)"
    )
    k = sized((kernel, [2048, 8, 1], [32, 4, 1]))
    assert (k.family, k.dim("rows"), k.dim("cols")) == ("softmax", 65536, 2048)


def test_short_rows_of_a_softmax_go_two_to_a_warp():
    k = sized(("void softmax_warp_backward<float, float, float, 6, false, false>(float*)", [100], [64, 2, 1]))
    assert (k.family, k.dim("rows"), k.dim("cols")) == ("softmax_backward", 400, 64)


def test_flash_attention_names_heads_queries_and_whether_it_is_causal():
    k = sized((FLASH, [5, 16, 12], [128, 1, 1]))
    assert [k.dim(d) for d in ("batch", "heads", "q", "kv", "head_dim", "causal")] == [
        16,
        12,
        640,
        640,
        64,
        1,
    ]


def test_tiles_are_found_in_names_that_say_tilesize():
    k = sized(("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4_kernel", [43, 12, 1], [256]))
    assert (k.family, k.dim("n"), k.dim("m")) == ("gemm", 43 * 192, 12 * 128)


def test_grids_of_amds_libraries_count_work_items():
    k = sized(("batched_transpose_32x32_half", [2007040, 1, 1], [256, 1, 1]))
    assert k.dim("elements") == 2007040
