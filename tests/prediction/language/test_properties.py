"""What must hold whatever the constants: more work never takes less time, more bandwidth never more."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from stepsight.errors import InputError
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.language import quick
from stepsight.workload.llm.config import read_language
from stepsight.workload.llm.layout import SCHEDULES
from stepsight.workload.llm.model import FAMILIES

TOLERANCE = 1.002
"""Kernel models may read a larger product a trace faster; a whole step may not."""
SIZES = {"layers": 8, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 32000, "sequence": 1024}
LAYOUTS: list[dict[str, Any]] = [
    {"data": 8},
    {"data": 16, "zero": "fsdp"},
    {"data": 4, "tensor": 4, "sequence_parallel": True, "zero": 1},
    {"data": 2, "tensor": 2, "pipeline": 4, "micro_batch": 1},
]


def step_us(platform: Platform, training: dict[str, Any] | None = None, **changed: Any) -> float:
    parallel = changed.pop("parallel", {"data": 8})
    family = changed.pop("family", "llama")
    document = {
        "kind": "transformer", "family": family, **SIZES, "global_batch": 64, **changed,
        "training": {"framework": "megatron", **(training or {})}, "parallel": parallel,
    }  # fmt: skip
    if family == "vit":
        document |= {"vocab": 1000, "patch_values": 588}
    if family == "t5":
        document["encoder_layers"] = document["layers"]
    return quick(read_language(document, "test"), platform).step_us


@pytest.fixture(scope="module")
def platform() -> Platform:
    return load_platform("2x8xH100-SXM-80G-400G")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_half_precision_is_never_slower_than_autocast_or_full(platform: Platform, family: str) -> None:
    half = step_us(platform, {"precision": "bf16"}, family=family)
    autocast = step_us(platform, {"precision": "bf16", "master_weights": False}, family=family)
    full = step_us(platform, {"precision": "fp32"}, family=family)
    assert half <= TOLERANCE * autocast
    assert autocast < full


@pytest.mark.parametrize("parallel", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("layers", (4, 8, 12, 16)),
        ("global_batch", (32, 64, 128, 256)),
        ("sequence", (512, 1024, 2048, 4096)),
        ("vocab", (16000, 32000, 64000, 128000)),
    ],
)
def test_more_of_a_model_takes_longer(
    platform: Platform, parallel: dict[str, Any], field: str, values: tuple[int, ...]
) -> None:
    times = [step_us(platform, parallel=parallel, **{field: value}) for value in values]
    assert times == sorted(times)


@pytest.mark.parametrize("parallel", LAYOUTS, ids=str)
def test_a_wider_model_takes_longer(platform: Platform, parallel: dict[str, Any]) -> None:
    wider = [(1024, 8), (2048, 16), (4096, 32), (8192, 64)]
    times = [step_us(platform, parallel=parallel, hidden=h, heads=n, ffn=4 * h) for h, n in wider]
    assert times == sorted(times)


@pytest.mark.parametrize("gpu", ["A100-SXM4-80G", "H100-SXM-80G", "B200-SXM-180G", "L40S-48G"])
@pytest.mark.parametrize("parallel", LAYOUTS, ids=str)
def test_more_bandwidth_never_costs_time(gpu: str, parallel: dict[str, Any]) -> None:
    for field, rates in (("nic.gbps", (6.25, 12.5, 25, 50, 100)), ("link.gbps", (25, 50, 150, 450, 900))):
        times = [
            step_us(load_platform(f"2x8x{gpu}", [f"{field}={rate}"]), parallel=parallel) for rate in rates
        ]
        assert all(b <= TOLERANCE * a for a, b in pairwise(times)), (field, times)


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed", "hf", "jax"])
@pytest.mark.parametrize("nic", ["25G", "400G"])
def test_zero_2_is_never_slower_than_zero_3_which_moves_more(framework: str, nic: str) -> None:
    """At the same overlap settings: gathers beside the forward pass, reductions beside the backward one,
    both of half-precision gradients (Megatron reduces ZeRO-2's in fp32 unless stated otherwise)."""
    training = {"framework": framework, "gradients": "half"}
    machine = load_platform(f"2x8xH100-SXM-80G-{nic}")
    for micro_batch in (1, 2, 4):
        for prefetch in (True, False):
            spread = {"data": 16, "micro_batch": micro_batch, "prefetch": prefetch}
            two, three = (
                step_us(machine, training, parallel={**spread, "zero": zero, **more})
                for zero, more in ((2, {"overlap_gradients": True}), (3, {}))
            )
            assert two <= TOLERANCE * three, (micro_batch, prefetch)


@pytest.mark.parametrize("nic", ["10G", "100G", "400G"])
def test_zero_1_is_no_slower_than_zero_2_which_reduces_more_often(nic: str) -> None:
    """DeepSpeed gathers parameters of both behind the update."""
    machine = load_platform(f"2x8xH100-SXM-80G-{nic}")
    for micro_batch in (1, 2):
        one, two = (
            step_us(
                machine,
                {"framework": "deepspeed"},
                parallel={"data": 16, "micro_batch": micro_batch, "zero": zero},
            )
            for zero in (1, 2)
        )
        assert one <= 1.005 * two
        if nic == "10G":
            assert one < 0.8 * two


@pytest.mark.parametrize("stages", [2, 3, 5, 8])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_pipeline_has_an_answer_or_is_refused(platform: Platform, schedule: str, stages: int) -> None:
    """Whatever its micro-batches and pieces; nothing in between ends in a traceback."""
    answers = 0
    for micro_batches in (1, stages - 1, stages, stages + 1, 2 * stages, 3 * stages + 2):
        for virtual in (1, 2, 3):
            parallel = {
                "pipeline": stages, "schedule": schedule, "virtual_stages": virtual, "micro_batch": 1,
            }  # fmt: skip
            try:
                took = step_us(platform, parallel=parallel, global_batch=micro_batches, layers=24)
            except InputError as error:
                assert "virtual_stages" in str(error)
                continue
            assert took > 0
            answers += 1
    assert answers >= (2 if schedule == "interleaved" else 6)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_less_overlap_never_saves_time(platform: Platform, zero: int) -> None:
    parallel = {"data": 16, "micro_batch": 1, "zero": zero}
    beside, behind = (
        step_us(platform, parallel={**parallel, "overlap_gradients": overlap}) for overlap in (True, False)
    )
    assert beside <= TOLERANCE * behind
    if zero:
        early, late = (step_us(platform, parallel={**parallel, "prefetch": p}) for p in (True, False))
        assert early <= TOLERANCE * late


@pytest.mark.parametrize("framework", ["megatron", "nanotron", "llm-foundry", "torchtitan", "deepspeed"])
def test_more_nodes_never_make_an_answer_surer(framework: str) -> None:
    """On a machine that nobody measured: the interval of a job over nodes is no narrower than on one node."""
    widths = []
    for nodes in (1, 2, 4, 16, 64):
        machine = load_platform(f"{nodes}x8xH100-SXM-80G-400G" if nodes > 1 else "8xH100-SXM-80G")
        document = {
            "kind": "transformer", "family": "llama", **SIZES, "batch_per_rank": 16,
            "training": {"framework": framework}, "parallel": {"data": 8 * nodes, "zero": 3},
        }  # fmt: skip
        found = quick(read_language(document, "test"), machine)
        widths.append(found.high_us / found.low_us)
    assert all(b >= 0.97 * a for a, b in pairwise(widths)), widths
