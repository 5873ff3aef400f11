"""A missed bar is exit code 1 in every topic, with and without --json; met bars are 0."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from lab.__main__ import main
from lab.datasets.captured_steps import MeasuredStep
from lab.datasets.llm.case import Case
from lab.score.advise import Pair
from lab.score.capture.steps import ScoredStep
from lab.score.command import TOPICS, module_of
from lab.score.llm.rows import Answer, Outcome
from lab.score.sharding.results import SEARCHED, PlanTrial, Trial, write_trials
from lab.score.tune.regret import FileRegret, GroupRegret
from stepsight.prediction.learn.lesson import CurvePoint
from stepsight.score import Score

BY_SCORES = ("quick", "kernels", "collectives", "embedding", "overheads", "e2e", "traces")
"""Topics that print nothing but their scores."""
BY_THEMSELVES = ("llm", "tune", "sharding", "capture", "learn", "diagnose", "advise", "power")
"""Topics that print tables of their own."""
AS_JSON = pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
MISSED = pytest.mark.parametrize("missed", [False, True], ids=["met", "missed"])


def run(*arguments: str, as_json: bool) -> int:
    done = CliRunner().invoke(main, ["score", *arguments, *(["--json"] if as_json else [])])
    assert done.stdout.strip(), done.stderr
    if as_json:
        json.loads(done.stdout)
    return done.exit_code


def test_every_topic_is_tested_here() -> None:
    assert {*BY_SCORES, *BY_THEMSELVES} == set(TOPICS)


@pytest.mark.parametrize("topic", BY_SCORES)
@MISSED
@AS_JSON
def test_topics_of_scores(
    topic: str, missed: bool, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Score(topic, "a", 1, 0.1, 0.1, "all", "GMAE ≤ 5%", not missed, exposure="blind")
    module = importlib.import_module(module_of(topic))
    made = "lines" if topic == "e2e" else "scores"
    scores = (lambda: [line]) if topic == "quick" else (lambda data: [line])
    monkeypatch.setattr(module, made, scores)
    data = () if topic == "quick" else ("--data", str(tmp_path))  # its rows ship with the package
    assert run(topic, *data, as_json=as_json) == int(missed)


@MISSED
@AS_JSON
def test_all(missed: bool, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = Score("quick", "a", 1, 0.1, 0.1, "all", "GMAE ≤ 5%", not missed, exposure="blind")
    monkeypatch.setattr("stepsight.validate.quick.scores", lambda: [line])
    given = ("all", "--only", "quick", "--data", str(tmp_path), "--results", str(tmp_path / "results"))
    assert run(*given, as_json=as_json) == int(missed)


@MISSED
@AS_JSON
@pytest.mark.parametrize("what", ["time", "asked"])
def test_llm(what: str, missed: bool, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = Answer(101.0, 90.0, 120.0, fits=True), Answer(200.0, 90.0, 120.0, fits=True)
    full, asked = (bad if missed and what == name else good for name in ("time", "asked"))
    rows = [Outcome(Case({}, name="ran", measured_ms=100.0), full, asked)]
    monkeypatch.setattr("lab.score.llm.topic.outcomes", lambda *given: iter([("dgxc_llm", rows)]))
    assert run("llm", "--data", str(tmp_path), as_json=as_json) == int(missed)


@MISSED
@AS_JSON
def test_tune(missed: bool, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regret = 0.3 if missed else 0.01
    group = GroupRegret("g", 2, 2, "a", 1.0, "b", 1.0 + regret, 1.0, regret, 0.0, False)
    found = [FileRegret("f.csv", 1, regret, 0.0, 0.0, (group,))]
    monkeypatch.setattr("lab.score.tune.topic.regrets", lambda data: found)
    assert run("tune", "--data", str(tmp_path), as_json=as_json) == int(missed)


@MISSED
@AS_JSON
def test_sharding(missed: bool, as_json: bool, tmp_path: Path) -> None:
    """Two sharders, one half as fast; predicted the right way round, or the wrong one."""

    def plan(predicted: float, measured: float) -> PlanTrial:
        return PlanTrial(predicted, [[[measured, measured]], [[measured, measured]]])

    plans = {"a": plan(2.0 if missed else 1.0, 100.0), "b": plan(1.5, 200.0), SEARCHED: plan(1.0, 100.0)}
    write_trials(tmp_path / "trials.json", [Trial("t", 0, 2, 8, plans)])
    assert run("sharding", "--results", str(tmp_path / "trials.json"), as_json=as_json) == int(missed)


@MISSED
@AS_JSON
def test_capture(missed: bool, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = MeasuredStep("models_h100", "m b1", "script", {}, "1xH100-SXM", 100.0)
    made = ScoredStep(row, 150.0 if missed else 101.0, 90.0, 110.0)
    monkeypatch.setattr("lab.score.capture.topic.found", lambda *given: [made])
    assert run("capture", "--data", str(tmp_path), as_json=as_json) == int(missed)


@MISSED
@AS_JSON
def test_learn(missed: bool, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [CurvePoint(0, 0.2, 0.9), CurvePoint(3, 0.19 if missed else 0.1, 0.9)]
    monkeypatch.setattr("lab.score.learn.sources", lambda *given, **more: iter([("source", [])]))
    monkeypatch.setattr("lab.score.learn.curve_of", lambda *given: points)
    assert run("learn", "--data", str(tmp_path), as_json=as_json) == int(missed)


@MISSED
@AS_JSON
def test_diagnose(missed: bool, as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = SimpleNamespace(
        job=SimpleNamespace(file=SimpleNamespace(path="a.toml"), platform="8xH100-SXM"), cause="slower host",
        severity=2.0, moved=1.5, first_two=("slower host",), after_second=("slower host",),
        names=lambda suspects: not missed,
    )  # fmt: skip
    monkeypatch.setattr("lab.score.diagnose.faults", lambda *given: [fault])
    monkeypatch.setattr("lab.score.diagnose.nothing_wrong", lambda *given: 1.0)
    assert run("diagnose", as_json=as_json) == int(missed)


@MISSED
@AS_JSON
def test_advise(missed: bool, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Pair("recomputation", "runs", "a", "b", 0.2, -0.2 if missed else 0.2)] * 5
    monkeypatch.setattr("lab.score.advise.pairs", lambda *given: iter(found))
    assert run("advise", "--data", str(tmp_path), as_json=as_json) == int(missed)


@pytest.mark.parametrize(
    "topic", [t for t in TOPICS if t not in ("quick", "learn", "diagnose", "advise", "sharding", "power")]
)
def test_every_topic_that_reads_tables_takes_each(topic: str) -> None:
    """Scripts ask any of them for rows."""
    said = CliRunner().invoke(main, ["score", topic, "--help"])
    assert {"--data", "--each", "--json"} <= set(said.output.split())
