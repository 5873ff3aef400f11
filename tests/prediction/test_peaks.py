"""No answer is above any peak of its GPU, whichever model, type and setting is asked for."""

from __future__ import annotations

import random

import pytest

import stepsight
from stepsight.errors import StepsightError
from stepsight.hardware.gpus import gpu_catalogue
from stepsight.workload.files import shipped

SETTINGS = {
    "training.precision": ("fp32", "tf32", "fp16", "bf16", "fp8"),
    "training.attention": ("eager", "flash2", "flash3", "cudnn"),
    "training.recompute": ("none", "selective", "full"),
    "parallel.zero": (0, 1, 3), "parallel.tensor": (1, 2, 8), "parallel.micro_batch": (1, 4),
    "training.framework": ("eager", "megatron", "torchtitan", "hf"), "sequence": (512, 8192),
    "platform.gpu.power_w": (150, 1500), "platform.gpu.memory_gbps": (500, 20000),
    "platform.gpu.sms": (60, 200), "platform.gpu.speed": (0.8, 1.2),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_no_step_is_above_the_peak_of_its_gpus(seed: int) -> None:
    draw = random.Random(seed)
    answered = 0
    for _ in range(12):
        gpu = draw.choice(sorted(gpu_catalogue()))
        model = draw.choice([*shipped(), "resnet50", "stable-diffusion"])
        chosen = draw.sample(sorted(SETTINGS), 3)
        changes = {key: draw.choice(SETTINGS[key]) for key in chosen}
        try:
            rates = stepsight.predict(model, f"8x{gpu}", set=changes).throughput
        except StepsightError:
            continue
        answered += 1
        assert rates.mfu is None or 0 < rates.mfu <= 1, (model, gpu, changes, rates)
        assert rates.hfu is None or 0 < rates.hfu <= 1, (model, gpu, changes, rates)
        if answered == 2:
            return
