"""A cluster's own bandwidth in its platform file."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsight.errors import InputError
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
