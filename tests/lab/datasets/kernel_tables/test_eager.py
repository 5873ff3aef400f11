"""Operators of eager models: which kernels a row of a traced model runs, forward and backward."""

from lab.datasets.kernel_tables.eager import EagerRow, eager_rows


def row(
    op: str, target: str, inputs: str, output: str, device: str = "Tesla_V100-PCIE-32GB"
) -> list[EagerRow]:
    table = {
        "device": [device], "model": ["m"], "op": [op], "target": [target], "input_shapes": [inputs],
        "output_shape": [output], "forward_us": [100.0], "backward_us": [200.0],
    }  # fmt: skip
    return list(eager_rows(table))


def test_a_softmax_is_a_matrix_of_rows() -> None:
    (found,) = row("call_function", "softmax", "[[8, 16, 512, 512]]", "(8, 16, 512, 512)")
    assert found.kind == "softmax"
    assert found.forward[0].dim("rows") == 8 * 16 * 512
    assert [k.family for k in found.backward] == ["softmax_backward"]


def test_a_norm_has_gradients_of_input_and_weights() -> None:
    (found,) = row("call_module", "transformer.h.0.ln_1", "[[4, 512, 1280]]", "(4, 512, 1280)")
    assert [k.family for k in found.backward] == ["layer_norm_backward", "layer_norm_weights"]


def test_a_broadcast_operand_makes_indices() -> None:
    (plain,) = row("call_function", "add", "[[8, 512], [8, 512]]", "(8, 512)")
    (broadcast,) = row("call_function", "add", "[[8, 512], [1, 512]]", "(8, 512)")
    assert plain.forward[0].dim("indexed") == 0
    assert broadcast.forward[0].dim("indexed") == 1
    assert broadcast.forward[0].dim("read_bytes") == 4 * (8 * 512 + 512)


def test_rows_without_kernels_and_unknown_gpus_are_left_out() -> None:
    assert row("call_method", "size", "[[8, 512]]", "(1,)") == []
    assert row("call_function", "add", "[[8]]", "(8,)", device="abacus") == []
    assert row("call_function", "add", "nonsense", "nonsense") == []
