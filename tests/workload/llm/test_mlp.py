"""What an MLP or its experts compute on one rank."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.errors import InputError
from stepsight.program.job import COMPUTE, HOST, Op, Wait
from stepsight.workload.llm.build import build
from stepsight.workload.llm.config import LanguageConfig, read_language
from stepsight.workload.llm.layer import layer_work


def config(moe: dict[str, Any] | None = None, **parallel: Any) -> LanguageConfig:
    document = {
        "kind": "transformer", "family": "mixtral", "layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096,
        "vocab": 8192, "sequence": 1024, "global_batch": 16,
        "moe": {"experts": 8, "active": 2, "ffn": 2048, **(moe or {})},
        "training": {"framework": "torchtitan"}, "parallel": {"micro_batch": 1, **parallel},
    }  # fmt: skip
    return read_language(document, "test")


def product_flops(moe: dict[str, Any] | None = None, **parallel: Any) -> float:
    """FLOPs of a layer's products, forward, on one rank."""
    work = layer_work(config(moe, **parallel), experts=True)
    sizes = [(dict(k.dims), n) for k, n in work.forward.kernels.items() if k.family == "gemm"]
    return sum(n * 2 * d["batch"] * d["m"] * d["n"] * d["k"] for d, n in sizes)


@pytest.mark.parametrize("how", [{}, {"sequence_parallel": True}, {"expert": 4}, {"expert": 8, "data": 2}])
def test_experts_share_their_work_out_over_tensor_ranks_once(how: dict[str, Any]) -> None:
    """But for the router, which sees every token on each of them."""
    assert product_flops(tensor=4, **how) == pytest.approx(product_flops() / 4, rel=0.01)


def test_a_cut_expert_computes_as_much_and_gathers_its_tokens() -> None:
    whole, cut = ({"tensor": 4, "expert": 2, "expert_tensor": t} for t in (1, 2))
    assert product_flops(**cut) == pytest.approx(product_flops(**whole), rel=0.01)
    work = layer_work(config(**cut), experts=True)
    kinds = [m.kind for m in work.forward.messages if m.axis == "expert tensor"]
    assert kinds == ["all_gather", "reduce_scatter"]
    one, two = (layer_work(config(**how), experts=True).expert_parameters for how in (whole, cut))
    assert two == one / 2


@pytest.mark.parametrize("parallel", [{"expert_tensor": 2}, {"expert": 2, "tensor": 4, "expert_tensor": 3}])
def test_experts_are_cut_over_tensor_ranks_of_spread_out_experts(parallel: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expert_tensor"):
        config(**parallel)


def test_a_capacity_factor_pads_or_drops_tokens() -> None:
    spread = {"expert": 4, "data": 4}
    assert product_flops({"capacity_factor": 1.0}, **spread) == product_flops(**spread)
    padded = product_flops({"capacity_factor": 1.5}, **spread)
    assert padded == pytest.approx(product_flops({"imbalance": 1.5}, **spread))
    with pytest.raises(InputError, match="imbalance"):
        config({"capacity_factor": 1.5, "imbalance": 1.2})


def waits_for_counts(c: LanguageConfig) -> list[Op]:
    """Where the host waits for the device inside the passes of a step."""
    passes = [op for op in build(c).programs[0].ops if op.phase in ("forward", "backward")]
    return [op for op in passes if Wait(HOST, COMPUTE) in op.waits]


def megatron(moe: dict[str, Any] | None = None, **training: Any) -> LanguageConfig:
    document = {
        "kind": "transformer", "family": "mixtral", "layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096,
        "vocab": 8192, "sequence": 1024, "global_batch": 8,
        "moe": {"experts": 8, "active": 2, "ffn": 2048, **(moe or {})},
        "training": {"recipe": "megatron-2025", **training},
        "parallel": {"micro_batch": 1, "data": 8, "expert": 4},
    }  # fmt: skip
    return read_language(document, "test")


def test_the_host_waits_for_token_counts_once_a_forward_pass_of_a_layer() -> None:
    assert layer_work(megatron(), experts=True).forward.host_waits == 1
    assert layer_work(megatron(), experts=True).backward.host_waits == 0
    assert layer_work(megatron(recompute="full"), experts=True).backward.host_waits == 1
    assert waits_for_counts(megatron())


def test_neither_graphs_nor_experts_of_a_fixed_size_wait_for_token_counts() -> None:
    assert not waits_for_counts(megatron(cuda_graphs=True))
    assert layer_work(megatron({"capacity_factor": 1.0}), experts=True).forward.host_waits == 0
    assert layer_work(megatron(recipe="maxtext"), experts=True).forward.host_waits == 0


def test_fused_routing_launches_less() -> None:
    fused, unfused = megatron(recipe="nemo-2025"), megatron()
    assert (
        layer_work(fused, experts=True).forward.more_launches
        < layer_work(unfused, experts=True).forward.more_launches
    )
