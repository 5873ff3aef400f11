"""A cluster's own bandwidth in its platform file."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsight.collectives.site import SiteBandwidth, SiteCollectives
from stepsight.errors import InputError
from stepsight.estimate import Source
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.workload.files import load_workload

EXAMPLES = Path(__file__).parents[2] / "examples"
CLUSTER = 'name = "mine"\ngpu = "H100-SXM-80G"\ngpus_per_node = 8\nnodes = 8\n'


def written(folder: Path, site: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(CLUSTER + site)
    return path


def test_a_slow_network_slows_the_step_over_nodes(tmp_path: Path) -> None:
    workload = load_workload(EXAMPLES / "llama3_8b_fsdp.toml", ["parallel.data=64"])
    plain = predict(workload, load_platform(written(tmp_path, "")))
    slow = "[site.gbps]\nall_gather = { 2 = 10, 8 = 5 }\nreduce_scatter = { 2 = 10, 8 = 5 }\n"
    assert predict(workload, load_platform(written(tmp_path, slow))).step_time_us > 1.5 * plain.step_time_us


@pytest.mark.parametrize(
    ("site", "field"),
    [
        ("site = 3", "site"),
        ("[site]\nhop_us = 3.0", "gbps"),
        ("[site]\nrate = 3.0", "rate"),
        ("[site.gbps]\nall_gathers = { 2 = 10 }", "all_gathers"),
        ("[site.gbps]\nall_gather = { 1 = 10 }", "all_gather"),
        ("[site.gbps]\nall_gather = { 2 = -1 }", "all_gather"),
        ('[site]\naxes = ["row"]\ngbps.all_gather = { 2 = 10 }', "axes"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, site: str, field: str) -> None:
    with pytest.raises(InputError, match=field):
        load_platform(written(tmp_path, site))


def test_one_node_has_no_use_for_it(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text(CLUSTER.replace("nodes = 8", "nodes = 1") + "[site.gbps]\nall_gather = { 2 = 10 }\n")
    with pytest.raises(InputError, match="no effect on one node"):
        load_platform(path)


COUNTS = (2, 4, 8, 16)
STEP_US, NIC_US = 40.0, 256e6 / 8 / 50e3


def ring_bandwidth(nodes: int) -> float:
    """Bus bandwidth in GB/s of 256 MB round a ring of eight GPUs per node whose step takes `STEP_US`."""
    ranks = 8 * nodes
    share = (ranks - 1) / ranks
    return 256e6 * share / (STEP_US * (ranks - 1) + share * NIC_US) / 1e3


def site(nodes: int, gbps: dict[str, dict[int, float]]) -> SiteCollectives:
    return SiteCollectives(load_platform(f"{nodes}x8xH100-SXM-400G").collectives, SiteBandwidth(256e6, gbps))


RING = {"all_gather": {n: ring_bandwidth(n) for n in COUNTS}}


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_bandwidth_that_falls_with_the_nodes_is_the_time_of_a_ring_step(kind: str) -> None:
    cluster = site(16, RING)
    for nodes in COUNTS:
        ranks = 8 * nodes
        expected = STEP_US * (ranks - 1) + NIC_US / 8 * (ranks - 1) / ranks
        assert cluster.estimate(kind, [32e6], range(ranks)).time_us[0] == pytest.approx(expected, rel=0.02)


def test_figures_of_more_nodes_than_a_platform_has_say_as_much() -> None:
    small, large = (site(nodes, RING).estimate("all_gather", [1e6, 32e6], range(16)) for nodes in (2, 16))
    assert small.time_us == pytest.approx(large.time_us)


def test_one_figure_tells_of_the_bytes_alone() -> None:
    cluster = site(4, {"all_gather": {4: 50.0}})
    plain = cluster.models.estimate("all_gather", [1e4], range(32)).time_us
    assert cluster.estimate("all_gather", [1e4], range(32)).time_us == pytest.approx(plain, rel=0.01)


def test_the_measured_message_takes_what_was_measured_and_a_small_one_hardly_longer() -> None:
    cluster = site(8, {"all_reduce": {2: 362.0, 4: 160.0, 8: 100.0}})
    large, small = cluster.estimate("all_reduce", [256e6, 1e4], range(64)).time_us
    assert large == pytest.approx(2 * 63 / 64 * 256e6 / 100e3)
    assert small == pytest.approx(
        cluster.models.estimate("all_reduce", [1e4], range(64)).time_us[0], rel=0.05
    )


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "all_to_all", "send_recv"])
def test_a_larger_message_takes_longer(kind: str) -> None:
    sizes = [2.0**k for k in range(6, 34)]
    times = site(4, RING).estimate(kind, sizes, range(32) if kind != "send_recv" else (0, 8)).time_us
    assert (times[1:] >= times[:-1] * (1 - 1e-9)).all()


SIZES = [2.0**k for k in range(6, 34)]


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv"])
@pytest.mark.parametrize("rate", [3.0, 100.0, 400.0])
@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_a_measured_figure_never_widens_an_interval(kind: str, rate: float, nodes: int) -> None:
    cluster = site(4, {"all_gather": {2: rate, 4: rate}, "all_reduce": {2: rate}})
    ranks = range(8 * nodes) if kind != "send_recv" else (0, 8)
    given, without = (of.estimate(kind, SIZES, ranks) for of in (cluster, cluster.models))
    assert (given.spread <= without.spread).all()


def test_the_measured_message_is_measured_and_a_distant_one_is_not() -> None:
    cluster = site(2, {"all_reduce": {2: 100.0}})
    at, far = cluster.estimate("all_reduce", [256e6, 1e4], range(16))
    without = cluster.models.estimate("all_reduce", [256e6, 1e4], range(16))
    assert at.source is Source.MEASURED and "[site]" in at.note and at.spread < 0.6 * without.spread[0]
    assert far.source == without.source[1] and far.spread == without.spread[1]


@pytest.mark.parametrize("workload", ["llama3_8b_fsdp", "dlrm", "gpt"])
def test_stating_what_was_carried_narrows_the_step(workload: str, tmp_path: Path) -> None:
    carried = load_platform("2x8xH100-SXM-400G").collectives
    shares = {"all_gather": 15 / 16, "all_reduce": 30 / 16}
    rates = {
        kind: share * 256e6 / carried.estimate(kind, [256e6], range(16)).time_us[0] / 1e3
        for kind, share in shares.items()
    }
    text = "[site.gbps]\n" + "".join(f"{kind} = {{ 2 = {rate} }}\n" for kind, rate in rates.items())
    here = written(tmp_path, text)
    here.write_text(here.read_text().replace("nodes = 8", "nodes = 2"))
    job = load_workload(EXAMPLES / f"{workload}.toml")
    given, without = predict(job, load_platform(here)), predict(job, load_platform("2x8xH100-SXM-400G"))
    assert given.high_us / given.low_us <= without.high_us / without.low_us * 1.001
