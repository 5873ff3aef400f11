"""Measured rows are read, configurations captured once, and rows that cannot be captured are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.score.capture import models
from lab.score.capture.models import Captures, Configuration
from lab.score.capture.topic import Found, scored
from stepsight.capture.step.captured import CapturedStep
from stepsight.errors import InputError, ScriptFailedError
from stepsight.platform.load import load_platform
from tests.lab.score.capture.tiny import step

HEAD = ",".join(models.COLUMNS) + "\n"


def test_rows_with_the_same_configuration_share_a_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.csv"
    row = "hf_T5,4,128,-1,HP,True,{},1e9,2e9\n"
    file.write_text(HEAD + row.format(10.0) + row.format(11.0) + "timm_none,4,-1,224,FP,False,5,1,1\n")
    asked: list[Configuration] = []

    def capture(self: Captures, one: Configuration) -> CapturedStep:
        asked.append(one)
        if one.model == "timm_none":
            raise ScriptFailedError(1, "timm has no model of this name")
        return step()

    monkeypatch.setattr(Captures, "step", capture)
    outcomes = list(models.predicted(models.read(file), Captures(load_platform("1xH100-SXM"))))
    assert [o.model for o in asked] == ["hf_T5", "timm_none"]
    assert [len(o.rows) for o in outcomes] == [2, 0]
    assert outcomes[1].problem == "timm has no model of this name"
    lines = scored(Found(outcomes[0].rows, (("timm_none", outcomes[1].problem),)))
    assert [line.name for line in lines] == [
        "step time", "peak active memory", "peak reserved memory", "step time of hf_T5",
    ]  # fmt: skip
    assert "1 configurations were not captured" in lines[0].note


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("a,1,1,1,XX,True,1,1,1", "precision"),
        ("a,1,1,1,FP,maybe,1,1,1", "activation_checkpointing"),
        ("a,one,1,1,FP,True,1,1,1", "batch"),
        ("a,1,1,1,FP,True,inf,1,1", "step_ms"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, problem: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(HEAD + row + "\n")
    with pytest.raises(InputError, match=problem):
        models.read(file)


def test_a_library_model_is_captured_from_its_name(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("timm")
    captures = Captures(load_platform("1xH100-SXM"), tmp_path)
    one = Configuration("timm_vit_tiny_patch16_224", 2, -1, 224, "HP", True)
    made = captures.step(one)
    products = [k for op in made.job.programs[0].ops for k in op.kernels if k.family == "gemm"]
    assert {k.dtype for k in products} == {"fp16"}
    assert not made.guessed
    assert captures.step(one).name == made.name  # from the folder
    assert [f.name for f in tmp_path.iterdir()] == [one.file()]
