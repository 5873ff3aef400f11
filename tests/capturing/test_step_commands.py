"""What a captured step can be asked afterwards: other platforms, what-ifs, comparisons, tuning. No torch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stepsight.capturing.step import RankMemoryUse, Samples, save_step
from stepsight.cli import cli
from stepsight.errors import InputError
from tests.lab.score.capture.tiny import step


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "step.json"
    save_step(step(), path)
    return str(path)


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(cli, list(arguments))
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    return done


def test_json_holds_the_step_and_the_peaks_of_the_fullest_rank(saved: str) -> None:
    made = json.loads(run("predict", saved, "-p", "1xH100-SXM", "--json").stdout)
    assert made["step_time_us"] > 0
    assert made["memory"]["peak_active_bytes"] == 1e9
    assert made["memory"]["peak_reserved_bytes"] == 2e9


def test_platforms_are_compared(saved: str) -> None:
    out = run("compare", saved, "-p", "1xA100-SXM4-80G", "--platform-b", "1xH100-SXM", "--json").stdout
    assert json.loads(out)["speedup"] > 1


def test_a_slower_host_is_a_changed_field_of_the_platform(saved: str) -> None:
    plain = json.loads(run("predict", saved, "-p", "1xH100-SXM", "--json").stdout)
    slow = run("predict", saved, "-p", "1xH100-SXM", "--set", "platform.host.speed=0.5", "--json").stdout
    assert json.loads(slow)["step_time_us"] > plain["step_time_us"]


@pytest.mark.parametrize("question", ["no-host", "gpu=A100-SXM4-80G", "batch=4096", "drop=linear"])
def test_questions_are_asked_of_it(saved: str, question: str) -> None:
    out = run("compare", saved, "-p", "1xH100-SXM", "--what-if", question, "--json").stdout
    assert json.loads(out)["difference_us"] != 0


def test_a_larger_batch_is_of_more_samples(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    use = RankMemoryUse(0, 3e9, 4e9, {"parameters": 1e9, "activations_and_temporaries": 2e9})
    save_step(replace(step(), samples=Samples(count=16), memory=(use,)), path)
    out = run("compare", str(path), "-p", "1xH100-SXM", "--what-if", "batch=3", "--json").stdout
    before, after = (json.loads(out)[side] for side in ("before", "after"))
    assert after["throughput"]["samples_per_s"] > before["throughput"]["samples_per_s"]
    assert after["memory"]["peak_active_bytes"] == before["memory"]["peak_active_bytes"] + 2 * 2e9


def test_platforms_are_swept_and_tuning_says_so(saved: str) -> None:
    out = run("sweep", saved, "--over", "platform=1xA100-SXM4-80G,1xH100-SXM").output
    assert "A100" in out and "H100" in out
    refused = CliRunner().invoke(cli, ["tune", saved, "-p", "1xH100-SXM"])
    assert isinstance(refused.exception, InputError)
    assert "--over platform=" in str(refused.exception)


def test_shipped_steps_are_swept_by_their_names() -> None:
    out = run("sweep", "resnet50", "--over", "platform=1xA100-SXM4-80G,1xH100-SXM").output
    assert "A100" in out and "H100" in out
