"""A trace on another platform meets the same conditions as any job: clock, site, learned factors."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsight.prediction.answer import Prediction
from stepsight.prediction.traced.predict import predict_trace
from tests.trace.making import Made, made_run

PLATFORM = """
name = "mine"
based_on = "2x4xH100-SXM-400G"
"""
HOW = pytest.mark.parametrize("models_only", [False, True], ids=["anchored", "models"])


def training() -> Made:
    """Three steps of four large products and an exposed all_reduce on eight A100."""
    made, at = Made(world=8, device="NVIDIA A100-SXM4-80GB"), 0.0
    for number in range(3):
        made.step(number, at, 21000)
        for i in range(4):
            begin = at + 1 + 100 * i
            made.op("aten::mm", begin, 90, [[8192, 8192]] * 2, ["c10::Half"] * 2)
            made.launch(begin + 9, 8, "ampere_fp16_s16816gemm_fp16_128x64_tn", at + 200 + 5000 * i, 5000)
        made.op("nccl:all_reduce", at + 500, 50, [[2**24]], ["float"])
        made.launch(at + 510, 8, "ncclKernel_AllReduce_RING_LL_Sum_float(x)", at + 20200, 800, stream=20)
        at += 21500
    return made


def predicted(platform: str | Path | None, models_only: bool, *overrides: str) -> Prediction:
    name = None if platform is None else str(platform)
    return predict_trace(made_run(training()), name, overrides=overrides, models_only=models_only)


@HOW
def test_a_lower_power_limit_slows_products(models_only: bool) -> None:
    usual, limited = (
        predicted("8xH100-SXM", models_only, *sets) for sets in ((), ("platform.gpu.power_w=350",))
    )
    assert limited.breakdown_us["gemm"] > 1.3 * usual.breakdown_us["gemm"]


@HOW
def test_a_lower_power_limit_of_the_traced_machine_counts_too(models_only: bool) -> None:
    usual, limited = (predicted(None, models_only, *sets) for sets in ((), ("platform.gpu.power_w=200",)))
    assert limited.step_time_us > 1.1 * usual.step_time_us


@HOW
@pytest.mark.parametrize(
    ("block", "part"),
    [("[learned]\ngemm = 1.5\n", "gemm"), ("[learned]\nnetwork = 3.0\n", "exposed_communication")],
)
def test_learned_factors_slow_their_part(tmp_path: Path, block: str, part: str, models_only: bool) -> None:
    for name, text in (("plain", PLATFORM), ("learned", PLATFORM + block)):
        (tmp_path / f"{name}.toml").write_text(text)
    plain, learned = (predicted(tmp_path / f"{n}.toml", models_only) for n in ("plain", "learned"))
    assert learned.breakdown_us[part] > 1.3 * plain.breakdown_us[part]
