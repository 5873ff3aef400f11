"""Slowdowns with more GPUs: what makes a pair, and when a prediction beats none at all."""

from __future__ import annotations

import pytest

from lab.datasets.llm.case import Case
from lab.score.llm.rows import Answer, Outcome
from lab.score.llm.scaling import pairs, scaling_lines


def ran(
    nodes: int, measured_ms: float, predicted_ms: float, model: str = "llama3-8b", each: int = 8
) -> Outcome:
    stated = {"model": model, "global_batch": nodes * each, "parallel": {"data": 8 * nodes, "tensor": 1}}
    platform = f"{nodes}x8xH100-SXM-400G" if nodes > 1 else "8xH100-SXM"
    answer = Answer(step_ms=predicted_ms)
    return Outcome(Case(stated, platform=platform, measured_ms=measured_ms, file="f"), answer, answer)


def test_a_pair_is_one_configuration_on_its_fewest_and_most_gpus() -> None:
    rows = [ran(1, 100, 90), ran(4, 105, 95), ran(16, 120, 99), ran(16, 100, 90, model="llama3-70b")]
    (pair,) = pairs(rows)
    assert (pair.few, pair.many) == (8, 128)
    assert pair.measured == pytest.approx(1.2) and pair.predicted == pytest.approx(1.1)
    assert pair.closer


def test_less_work_for_each_gpu_is_no_speedup() -> None:
    (pair,) = pairs([ran(1, 100, 90, each=16), ran(16, 50, 45)])
    assert pair.measured == pytest.approx(1.0)


def test_few_more_gpus_are_no_pair() -> None:
    assert pairs([ran(2, 100, 90), ran(4, 100, 90)]) == []


def test_the_share_of_all_files_is_held_against_two_thirds() -> None:
    good, bad = pairs([ran(1, 100, 90), ran(16, 120, 99)]), pairs([ran(1, 100, 90), ran(16, 120, 80)])
    lines = {line.name.partition(": ")[2]: line for line in scaling_lines("llm", {"a": good, "b": bad})}
    figure = lines["a"].figure
    assert lines["all files"].met is False and figure is not None and figure.value == 1.0
    assert "all files, to 1,024 GPUs and more" not in lines
