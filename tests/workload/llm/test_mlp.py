"""What an MLP or its experts compute on one rank."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.workload.llm.config import read_language
from stepsight.workload.llm.layer import layer_work


def product_flops(**parallel: Any) -> float:
    """FLOPs of a layer's products, forward, on one rank."""
    document = {
        "kind": "transformer", "family": "mixtral", "layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096,
        "vocab": 8192, "sequence": 1024, "global_batch": 16, "moe": {"experts": 8, "active": 2, "ffn": 2048},
        "training": {"framework": "torchtitan"}, "parallel": {"micro_batch": 1, **parallel},
    }  # fmt: skip
    work = layer_work(read_language(document, "test"), experts=True)
    sizes = [(dict(k.dims), n) for k, n in work.forward.kernels.items() if k.family == "gemm"]
    return sum(n * 2 * d["batch"] * d["m"] * d["n"] * d["k"] for d, n in sizes)


@pytest.mark.parametrize("how", [{}, {"sequence_parallel": True}, {"expert": 4}, {"expert": 8, "data": 2}])
def test_experts_share_their_work_out_over_tensor_ranks_once(how: dict[str, Any]) -> None:
    """But for the router, which sees every token on each of them."""
    assert product_flops(tensor=4, **how) == pytest.approx(product_flops() / 4, rel=0.01)
