"""Megatron's operators: which kernels a row stands for, and which rows cannot be true."""

import numpy as np
import pytest

from lab.datasets.kernel_tables.megatron import operators, possible
from stepsight.errors import InputError
from stepsight.hardware.gpus import load_gpu

ROW = {"gpu": ["A100-SXM4-80G"], "mp": [2.0], "b": [4.0], "l": [2048.0], "h": [32.0], "dim": [4096.0]}


def of(op: str, gpu: str = "A100-SXM4-80G") -> dict[str, list[tuple[str, str, dict[str, float]]]]:
    table = ROW | {"op": [op], "gpu": [gpu]}
    return {
        o.direction: [
            (
                k.family,
                k.kinds[0].role.value if k.kinds[0].role else k.kinds[0].variant,
                {key: float(v[0]) for key, v in k.dims.items()},
            )
            for k in o.kernels
        ]
        for o in operators(table)
    }


def test_a_linear_layer_is_one_product_forward_and_two_backward() -> None:
    found = of("linear3")
    ((_, name, sizes),) = found["forward"]
    assert (name, sizes["m"], sizes["n"], sizes["k"]) == ("", 8192, 8192, 4096)
    assert [name for _, name, _ in found["backward"]] == ["dgrad", "wgrad"]


def test_attention_has_its_share_of_the_heads() -> None:
    ((_, name, sizes),) = of("flash_atten")["forward"]
    assert (name, sizes["batch"], sizes["heads"], sizes["head_dim"]) == ("flash2", 4, 16, 128)


def test_kernels_that_a_gpus_times_do_not_hold_are_left_out() -> None:
    assert [f for f, _, _ in of("layernorm")["backward"]] == ["layer_norm_backward", "layer_norm_weights"]
    assert [f for f, _, _ in of("layernorm", "GH200-96G")["backward"]] == ["layer_norm_backward"]
    assert "backward" not in of("flash_atten", "GH200-96G")


def test_rows_faster_than_the_gpu_can_be_are_told() -> None:
    (forward, _) = operators(ROW | {"op": ["gelu"]})
    light = 8192 * 8192 * 4 / 2039e3
    spec = load_gpu("A100-SXM4-80G")
    assert possible(forward, np.array([light * 1.1]), spec)[0]
    assert not possible(forward, np.array([light * 0.9]), spec)[0]
    assert not possible(forward, np.array([np.nan]), spec)[0]


def test_a_missing_column_is_named() -> None:
    with pytest.raises(InputError, match="no column mp"):
        list(operators({k: v for k, v in (ROW | {"op": ["gelu"]}).items() if k != "mp"}))
