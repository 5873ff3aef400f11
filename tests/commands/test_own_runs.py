"""Commands on a user's own runs: calibrate --runs, validate RUNS.csv, diagnose, advise, predict --tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepsight.cli import cli
from stepsight.errors import InputError

RUNS, ON = "examples/runs.csv", "4x8xH100-SXM-400G"


def done(*arguments: str) -> str:
    result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_runs_make_a_platform_file_that_predicts(tmp_path: Path) -> None:
    mine, page = tmp_path / "mine.toml", tmp_path / "page.html"
    found = json.loads(
        done("calibrate", "--runs", RUNS, "-p", ON, "--out", str(mine), "--html", str(page), "--json")
    )
    assert found["runs"] == 5
    assert found["factors"]["gemm"] > 1.05
    assert "The runs" in page.read_text()
    answer = json.loads(done("predict", "llama3-8b", "-p", str(mine), "--json"))
    assert any("learned from 5 runs (runs.csv)" in note for note in answer["notes"])


def test_runs_are_validated_against_each_other() -> None:
    found = json.loads(done("validate", RUNS, "-p", ON, "--json"))
    assert found["mape_others_learned"] < found["mape_without_learning"]
    assert [point["runs"] for point in found["curve"]] == [0, 1, 2, 3]


def test_a_slow_step_is_diagnosed() -> None:
    asked = ("diagnose", "examples/dlrm.toml", "-p", "8xH100-SXM", "--measured", "7.1ms")
    found = json.loads(done(*asked, "--json"))
    assert found["verdict"] == "slower than expected"
    assert {"name", "probability", "step_us", "change", "check"} <= set(found["suspects"][0])
    assert "suspects, the likeliest first" in done(*asked)


def test_changes_are_advised(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = ("advise", "examples/bert.toml", "-p", "4xA100-SXM4-40G", "--html", str(page))
    found = json.loads(done(*asked, "--json"))
    assert found["changes"][0]["set_line"].startswith("--set ")
    assert "Changes" in page.read_text()


def test_a_whole_run_has_days_and_cost(tmp_path: Path) -> None:
    asked = ("predict", "llama3-8b", "-p", "8xH100-SXM", "--tokens", "1e12", "--price", "2.5", "--json")
    page = tmp_path / "page.html"
    run = json.loads(done(*asked, "--html", str(page)))["whole_run"]
    assert "Whole run" in page.read_text()
    assert run["energy_kwh"]["value"] > 0
    assert run["days"]["low"] < run["days"]["value"] < run["days"]["high"]
    assert run["cost"]["value"] == pytest.approx(2.5 * run["gpu_hours"]["value"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("calibrate", "--runs", RUNS, "-p", ON, "--out", "mine"),
        ("validate", "no_such.csv", "-p", ON),
        ("diagnose", "examples/dlrm.toml", "-p", "8xH100-SXM", "--measured", "fast"),
        ("diagnose", "examples/dlrm.toml", "-p", "8xH100-SXM", "--measured", "5ms", "--also", "batch:3ms"),
        ("predict", "examples/dlrm.toml", "-p", "8xH100-SXM", "--tokens", "1e9"),
        ("predict", "examples/dlrm.toml", "-p", "8xH100-SXM", "--price", "2"),
        ("advise", "no_such_script.py", "-p", "8xH100-SXM"),
    ],
)
def test_a_mistake_is_named(arguments: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        CliRunner().invoke(cli, arguments, catch_exceptions=False)
