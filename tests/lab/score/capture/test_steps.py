"""Measured rows are read, configurations captured once, and rows that cannot be captured are named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lab.datasets.captured_steps import read_steps
from lab.score.capture import steps
from lab.score.capture.forks import Outcome, Wanted, captured
from lab.score.capture.topic import lines
from stepsight.capturing.request import request
from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from tests.lab.score.capture.tiny import step

MODELS = (
    "model,batch,seq,image,precision,activation_checkpointing,step_ms,peak_active_bytes,peak_reserved_bytes\n"
)
TIMM = "model,gpu,torch,layout,precision,batch,image,params_m,step_ms,next_larger_batch_that_failed\n"


def _captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []

    def capture(wanted: Sequence[Wanted], libraries: Sequence[str]) -> Iterator[Outcome]:
        for one in wanted:
            asked.append(one.name)
            if "none" in one.name:
                yield Outcome(one.key, problem="Unknown model (none)")
            else:
                yield Outcome(one.key, step())

    monkeypatch.setattr(steps, "captured", capture)
    return asked


def _scored(folder: Path) -> list[steps.ScoredStep]:
    return list(steps.scored(list(read_steps(folder)), folder / "kept", None, lambda text: None))


def test_rows_with_the_same_configuration_share_a_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = "hf_T5,4,128,-1,HP,True,{},1e9,2e9\n"
    rows = MODELS + row.format(10.0) + row.format(11.0) + "timm_none,4,-1,224,FP,False,5,1,1\n"
    (tmp_path / "models_h100.csv").write_text(rows)
    asked = _captures(monkeypatch)
    made = _scored(tmp_path)
    assert asked == ["hf_T5 batch 4, sequence 128, HP, AC", "timm_none batch 4, image 224, FP"]
    assert [s.row.step_ms for s in made if not s.problem] == [10.0, 11.0]
    assert [s.other_model for s in made] == [False, False, True]
    made_lines = lines(made)
    assert [line.name for line in made_lines] == [
        "models_h100: step time", "models_h100: peak active memory", "models_h100: peak reserved memory",
    ]  # fmt: skip
    assert "1 rows of models that the library has no longer" in made_lines[0].note


def test_a_kept_step_is_not_captured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models_h100.csv").write_text(MODELS + "hf_T5,4,128,-1,HP,True,10,1e9,2e9\n")
    asked = _captures(monkeypatch)
    first, second = _scored(tmp_path), _scored(tmp_path)
    assert len(asked) == 1
    assert first == second


def test_a_larger_batch_needs_more_of_all_but_the_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm_train_rtx3090.csv").write_text(
        TIMM + "resnet50,RTX-3090,1.12,nchw,fp32,8,224,25.6,10,16\n"
    )
    _captures(monkeypatch)
    (made,) = _scored(tmp_path)
    assert made.fits and made.larger_fits  # the tiny step has nothing but parameters


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
    (tmp_path / "models_h100.csv").write_text(MODELS + row + "\n")
    with pytest.raises(InputError, match=problem):
        list(read_steps(tmp_path))


def test_a_library_model_is_captured_from_its_name() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    asked = '{"model":"hf_bert","batch":2,"sequence":32,"precision":"HP"}'
    spec = load_platform("1xH100-SXM").spec
    made = request(spec.gpu, "lab.library.build", [asked], world=1, per_node=1, module=True)
    wanted = Wanted("a", "bert", made)
    (outcome,) = captured([wanted], ("transformers",), workers=1)
    assert outcome.step is not None, outcome.problem
    products = [k for op in outcome.step.job.programs[0].ops for k in op.kernels if k.family == "gemm"]
    assert {k.dtype for k in products} == {"fp16"}
    assert not outcome.step.guessed
