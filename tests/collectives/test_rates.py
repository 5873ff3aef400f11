"""More bandwidth never costs time, on any platform of the catalogue."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from stepsight.collectives import extrapolate
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
    node = load_platform(f"8x{gpu}").collectives.estimate(kind, SIZES, range(8)).time_us[-1]
    for slower, faster in pairwise(times):
        assert (faster <= slower * (1 + 1e-9)).all()
        assert faster[-1] < 0.95 * slower[-1] or (kind == "all_reduce" and faster[-1] < 1.3 * node)


PCIE = [name for name, entry in sorted(gpu_catalogue().items()) if entry.link.kind == "pcie"]
RINGS = ("all_reduce", "all_gather", "reduce_scatter")


@pytest.mark.parametrize("gpu", PCIE)
def test_two_pcie_nodes_take_longer_than_one_and_their_nics_matter(gpu: str) -> None:
    node = load_platform(f"8x{gpu}").collectives
    nodes = [load_platform(f"2x8x{gpu}-{rate}G").collectives for rate in (50, 100, 200, 400)]
    for kind in RINGS:
        inside = node.estimate(kind, SIZES, range(8)).time_us
        times = [models.estimate(kind, SIZES, range(16)).time_us for models in nodes]
        for slower, faster in pairwise(times):
            assert (faster[-3:] < slower[-3:]).all()
        # A ring of 16 sends 2 · 15/16 of the bytes over each link, one of 8 sends 2 · 7/8.
        assert (times[-1][-3:] >= 1.01 * inside[-3:]).all()


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


@pytest.mark.parametrize("rate", [6.0, 24.0, 48.0])
def test_peer_access_is_faster_than_staging_through_host_memory(rate: float) -> None:
    peer, staged = (
        load_platform("8xL40S", [f"link.gbps={rate}", f"link.peer_access={flag}"]).collectives
        for flag in ("true", "false")
    )
    for kind in ("all_reduce", "all_to_all"):
        times = [models.estimate(kind, SIZES, range(8)).time_us[-1] for models in (peer, staged)]
        assert 1.1 * times[0] < times[1]


def test_pcie_bandwidth_is_the_path_of_a_usual_server_and_says_so() -> None:
    found = {gpu: load_platform(f"8x{gpu}").collectives for gpu in ("L40S", "RTX-3090", "RTX-4090")}
    gbps = {
        gpu: 1.75e9 / m.estimate("all_reduce", [1e9], range(8)).time_us[0] / 1e3 for gpu, m in found.items()
    }
    assert gbps["L40S"] > 1.2 * max(gbps["RTX-3090"], gbps["RTX-4090"])
    assert abs(gbps["L40S"] - gbps["RTX-3090"]) > 0.1
    answer = found["RTX-4090"].estimate("all_reduce", [1e9], range(8))[0]
    assert "usual PCIe server" in answer.note
    assert answer.spread > 0.4


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
@pytest.mark.parametrize("gpu", ["L40S", "RTX-4090", "H100-SXM"])
def test_more_nodes_are_no_faster_than_the_links_inside_one(gpu: str, kind: str) -> None:
    sizes = [1e3, 1e6, 1e8, 1e9]
    inside = load_platform(f"8x{gpu}").collectives.estimate(kind, sizes, range(8))
    over = load_platform(f"2x8x{gpu}-400G").collectives.estimate(kind, sizes, range(16))
    assert (over.time_us >= inside.time_us * (1 - 1e-9)).all()


@pytest.mark.parametrize("nodes", ["H100-SXM-400G", "A100-SXM4-80G-200G", "B200-800G", "H100-SXM-400G-EFA"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_more_nodes_take_longer_but_never_by_more_than_their_number(nodes: str, kind: str) -> None:
    models = load_platform(f"2048x8x{nodes}").collectives
    each = np.array([1e2, 1e4, 1e6, 1e8])
    counts = (16, 24, 32, 48, 64, 128, 256, 512, 528, 640, 1024, 1536, 2048, 4096, 5000, 16384)
    times = [
        models.estimate(kind, each * (ranks if kind in extrapolate.RINGS else 1), range(ranks)).time_us
        for ranks in counts
    ]
    for (fewer, before), (more, after) in pairwise(zip(counts, times, strict=True)):
        assert (after >= before * (1 - 1e-9)).all()
        assert (after <= before * 1.1 * more / fewer).all()
    sizes = np.geomspace(1e2, 1e10, 60)
    assert (np.diff(models.estimate(kind, sizes, range(5000)).time_us) >= 0).all()


def test_a_ring_over_many_nodes_takes_the_hops_of_its_own_transport() -> None:
    models = load_platform("2048x8xH100-SXM-400G").collectives
    for ranks in (640, 1024, 16384):
        found = models.estimate("all_gather", [1e4 * ranks], range(ranks))[0]
        assert "Slingshot" not in found.note
        assert found.time_us < 3.0 * ranks
