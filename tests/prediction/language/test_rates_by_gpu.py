"""Rates of one model over GPUs: those without measurements of their own stay in reach of public figures."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight import load_platform, predict
from stepsight.hardware.gpus import gpu_catalogue
from stepsight.prediction.throughput import Throughput

LARGE = [entry.gpu for entry in gpu_catalogue().values() if entry.gpu.memory_gb >= 40]


def rates(model: str, platform: str, *, batch: int = 1, **training: Any) -> Throughput:
    job = {
        "kind": "transformer", "model": model, "sequence": 8192, "batch_per_rank": batch,
        "training": training, "parallel": {"zero": 3},
    }  # fmt: skip
    return predict(job, platform).throughput


@pytest.mark.parametrize("gpu", LARGE, ids=lambda gpu: gpu.name)
def test_no_gpu_reaches_more_of_its_peak_than_any_published_run(gpu: Any) -> None:
    """A100 at 0.68 to 0.72 (FMS, compiled) is the highest published."""
    found = rates("llama3-8b", f"8x{gpu.name}").mfu
    assert found is not None
    assert 0.1 < found < (0.57 if gpu.vendor == "amd" else 0.72)


@pytest.mark.parametrize(("model", "measured"), [("llama3-8b", 1.02), ("llama3-70b", 1.16)])
def test_mi355x_against_b200_as_amd_states_it(model: str, measured: float) -> None:
    recompute = "full" if model == "llama3-70b" else "none"
    amd = rates(model, "8xMI355X", recompute=recompute).tokens_per_s_per_gpu
    nvidia = rates(model, "8xB200", recompute=recompute, attention="cudnn").tokens_per_s_per_gpu
    assert amd is not None and nvidia is not None
    assert amd / nvidia == pytest.approx(measured, rel=0.15)


def test_mi250_as_databricks_states_it() -> None:
    """MPT-7B with recomputation, by two chips: 0.8 of an A100-40GB (157 TFLOP/s), and 1.13 times that with
    FlashAttention-2."""
    job = {
        "kind": "transformer", "model": "mpt-7b", "sequence": 2048, "batch_per_rank": 8,
        "parallel": {"zero": 3}, "training": {"framework": "llm-foundry", "recompute": "full"},
    }  # fmt: skip
    assert predict(job, "8xMI250").throughput.tflops_per_gpu == pytest.approx(157 * 0.8 * 1.13 / 2, rel=0.15)


@pytest.mark.parametrize("batch", [1, 4])
def test_h200_is_no_slower_than_h100(batch: int) -> None:
    h100, h200 = (rates("llama3-8b", name, batch=batch).tokens_per_s_per_gpu for name in ("8xH100", "8xH200"))
    assert h100 is not None and h200 is not None
    assert h200 >= h100


def test_mfu_stays_below_one_whatever_the_peak() -> None:
    slow = load_platform("8xH100", ["gpu.peak_tflops.bf16=100"])
    job = {
        "kind": "transformer", "model": "llama3-8b", "batch_per_rank": 1, "parallel": {"zero": 3},
    }  # fmt: skip
    found = predict(job, slow).throughput.mfu
    assert found is not None and found < 0.8
