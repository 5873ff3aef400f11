"""Answers of an interrupted search count again only where nothing that they depend on has changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepsight.documents import files_read
from stepsight.errors import InputError
from stepsight.tuning.trial import Journal, Row, Trial

ROW = Row({"batch": 4}, "p", step_time_us=10.0, shares={"gemm": 0.5})


def journal(folder: Path, document: dict | None = None) -> Journal:
    return Journal(folder / "trials.jsonl", document or {"kind": "dlrm"}, str(folder / "work.toml"))


def kept(folder: Path, trial: Trial, document: dict | None = None) -> bool:
    return journal(folder, document).get(trial) is not None


@pytest.mark.parametrize(
    ("document", "platform", "overrides", "file"),
    [
        ({}, "8x{}/mine.toml", (), "mine.toml"),
        ({"tables": [{"indices": {"file": "indices.npz"}}]}, "p", (), "indices.npz"),
        ({"parallel": {"sharding": {"file": "plan.json"}}}, "p", (), "plan.json"),
        ({"kind": "captured", "file": "step.json"}, "p", (), "step.json"),
        ({"training": {"recipe": "my_recipe.toml"}}, "p", (), "my_recipe.toml"),
        ({}, "p", ("network={}/site.csv",), "site.csv"),
    ],
)
def test_an_answer_is_stale_once_a_file_it_rests_on_has_changed(
    tmp_path, document, platform, overrides, file
):
    (tmp_path / file).write_text("one = 1\n")
    named = tuple(text.format(tmp_path) for text in overrides)
    trial = Trial({}, platform.format(tmp_path), named)
    journal(tmp_path, document).add(trial, ROW)
    assert kept(tmp_path, trial, document)
    (tmp_path / file).write_text("one = 2\n")
    assert not kept(tmp_path, trial, document)


def test_files_that_a_file_names_count_too(tmp_path):
    (tmp_path / "gpu.toml").write_text("sms = 80\n")
    (tmp_path / "platform.toml").write_text('gpu = "gpu.toml"\n')
    before = files_read([str(tmp_path / "platform.toml")], Path())
    (tmp_path / "gpu.toml").write_text("sms = 81\n")
    assert files_read([str(tmp_path / "platform.toml")], Path()) != before


def test_a_file_written_again_with_the_same_content_keeps_its_answers(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("one = 1\n")
    journal(tmp_path).add(Trial({}, str(file)), ROW)
    file.unlink()
    file.write_text("one = 1\n")
    assert kept(tmp_path, Trial({}, str(file)))


@pytest.mark.parametrize(
    "tamper",
    [
        lambda line: line["row"].update(step_time_us=1.0),
        lambda line: line["row"].update(step_time_us="fast"),
        lambda line: line["row"].update(status="wonderful"),
        lambda line: line["row"].pop("step_time_us"),
        lambda line: line.pop("check"),
        lambda line: line.update(key="0" * 24),
        lambda line: line["row"].update(more=1),
    ],
)
def test_a_line_that_was_edited_is_refused_by_its_number(tmp_path, tamper):
    first = journal(tmp_path)
    first.add(Trial({}, "p"), ROW)
    first.add(Trial({}, "q"), ROW)
    lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    tamper(lines[1])
    (tmp_path / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match=r"trials.jsonl: line 2: is not a trial"):
        journal(tmp_path)
