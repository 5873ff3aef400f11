"""More bandwidth never costs time, on any platform of the catalogue."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from stepsight.hardware.gpus import gpu_catalogue
from stepsight.platform.load import load_platform

SIZES = np.array([1e3, 1e5, 1e6, 17e6, 101e6, 1e9])
RATES = (50, 80, 100, 150, 200, 400, 600)
KINDS = {"all_reduce": range(16), "all_gather": (0, 8), "send_recv": (0, 8)}


@pytest.mark.parametrize("gpu", ["A100-SXM4-80G", "H100-SXM-80G", "V100-SXM2-16G", "L40S", "MI300X"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_faster_nic_never_costs_time(gpu: str, kind: str) -> None:
    times = [
        load_platform(f"2x8x{gpu}-{rate}G").collectives.estimate(kind, SIZES, KINDS[kind]).time_us
        for rate in RATES
    ]
    for slower, faster in pairwise(times):
        assert (faster <= slower * (1 + 1e-9)).all()


@pytest.mark.parametrize("gpu", sorted(gpu_catalogue()))
def test_a_faster_link_never_costs_time_and_large_messages_use_it(gpu: str) -> None:
    platform = load_platform(f"8x{gpu}")
    rate = platform.spec.link.gbps
    if rate <= 0:
        pytest.skip("GPUs that no link joins")
    times = platform.collectives.estimate("all_reduce", SIZES, range(8)).time_us
    twice = load_platform(f"8x{gpu}", [f"link.gbps={2 * rate}"]).collectives
    assert (twice.estimate("all_reduce", SIZES, range(8)).time_us <= times * (1 + 1e-9)).all()
    assert 1.75 * SIZES[-1] / times[-1] / 1e3 > 0.15 * rate
