"""Calls on matrices that launch more than one kernel."""

from stepsight.program.aten.call import AtenCall, Precision, TensorFact
from stepsight.program.aten.table import lower


def fact(*shape: int, dtype: str = "fp32") -> TensorFact:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorFact(shape, dtype, tuple(strides))


def test_a_block_diagonal_matrix_is_copied_block_by_block() -> None:
    blocks = [fact(4, 4) for _ in range(768)]
    call = AtenCall("block_diag", tuple(blocks), (fact(3072, 3072),), {"tensors": blocks})
    made = lower(call, Precision())
    assert [k.family for k in made.kernels[:2]] == ["fill", "transpose"]
    assert len(made.kernels) == 769
    assert not made.guessed


def test_a_transform_passes_once_over_each_dimension_and_once_to_normalise() -> None:
    matrix = fact(3072, 3072, dtype="fp64")
    arguments = {"self": matrix, "dim": [0, 1], "normalization": 2, "forward": False}
    assert len(lower(AtenCall("_fft_c2c", (matrix,), (matrix,), arguments), Precision()).kernels) == 3
    arguments["normalization"] = 0
    assert len(lower(AtenCall("_fft_c2c", (matrix,), (matrix,), arguments), Precision()).kernels) == 2


def test_the_host_waits_for_the_check_of_a_factorisation() -> None:
    info = fact(768, dtype="int32")
    assert lower(AtenCall("_linalg_check_errors", (info,), (), {"info": info}), Precision()).blocks_host
