"""Pairs of published runs that differ in one setting."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from lab.datasets.llm.case import Case
from lab.datasets.llm.files import FILES
from lab.score import advise
from lab.score.advise import Pair, by_kind, pairs, sign_right

MODEL = {"model": "llama3-8b", "global_batch": 8, "sequence": 4096}


def case(measured_ms: float, **training: str) -> Case:
    stated = {**MODEL, "training": {"precision": "bf16", **training}, "parallel": {"zero": 1}}
    return Case(
        stated, "megatron-2025", name="run", platform="8xH100-SXM", measured_ms=measured_ms, file="runs"
    )


def test_runs_that_differ_in_one_setting_are_a_pair() -> None:
    cases = [case(100.0, recompute="none"), case(130.0, recompute="full"), case(100.0, attention="flash3")]
    with patch.object(advise, "all_cases", return_value=[(FILES[0], cases)]):
        found = list(pairs(Path()))
    assert [(p.kind, p.source) for p in found] == [("recomputation", "runs")]
    assert found[0].measured > 0
    assert found[0].predicted > 0


def test_changes_within_noise_have_no_sign() -> None:
    made = [
        Pair("recomputation", "runs", "a", "b", measured, predicted)
        for measured, predicted in ((0.2, 0.1), (-0.1, 0.05), (0.01, -0.5))
    ]
    assert sign_right(made) == (1, 2)
    assert list(by_kind(made)) == ["recomputation, runs"]
