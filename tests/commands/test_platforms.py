"""The catalogue on 80 columns, and files to start one's own platform from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stepsight.cli import cli
from stepsight.hardware.gpus import gpu_catalogue
from stepsight.platform.load import load_platform


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["platforms", *arguments])


def test_every_name_is_whole_on_eighty_columns() -> None:
    shown = run().output
    assert all(name in shown for name in gpu_catalogue())
    assert max(map(len, shown.splitlines())) <= 80


def test_words_choose_among_them() -> None:
    shown = run("hopper", "80").output
    assert "H100-SXM-80G" in shown
    assert "A100" not in shown.split("Name a platform")[0]


def test_words_that_match_nothing_say_what_to_do() -> None:
    assert "--show" in str(run("no-such-gpu").exception)


def test_json_of_one_platform_is_json() -> None:
    assert json.loads(run("--show", "2x8xH100-SXM-400G", "--json").output)["nodes"] == 2


@pytest.mark.parametrize("name", ["RTX-3090", "8xA100-SXM4-40G", "2x8xH100-SXM-200G"])
def test_what_is_shown_can_be_used(name: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(run("--show", name).output)
    mine, theirs = load_platform(file).spec, load_platform(name).spec
    assert (mine.gpu.name, mine.ranks, mine.link.gbps) == (theirs.gpu.name, theirs.ranks, theirs.link.gbps)
    if theirs.nic:
        assert mine.nic is not None
        assert mine.nic.gbps == theirs.nic.gbps
