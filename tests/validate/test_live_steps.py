"""Predicted first, measured after, scored beside the noise."""

from __future__ import annotations

from pathlib import Path

from stepsight.calibrate.draws import random_documents
from stepsight.calibrate.journal import Journal
from stepsight.calibrate.rehearsal import pending
from stepsight.validate.live import MEASURED, PASSES, PREDICTED, LiveRow, rows_of, scores


def row(name: str, kind: str, predicted: float, *passes: float) -> LiveRow:
    return LiveRow(name, kind, predicted, predicted / 2, sum(passes) / len(passes), passes)


def test_every_workload_is_measured_in_every_pass(tmp_path: Path) -> None:
    documents = random_documents(2, 5, 3)
    left = pending(Journal(tmp_path, resume=True), MEASURED, documents, PASSES)
    wanted = [d["name"] for _, group in left for d in group]
    assert sorted(wanted) == sorted([d["name"] for d in documents] * PASSES)


def test_what_was_measured_before_is_not_measured_again(tmp_path: Path) -> None:
    documents = random_documents(2, 2, 0)
    journal = Journal(tmp_path, resume=True)
    journal.add(MEASURED, [{"name": documents[0]["name"], "pass": 0, "steps_us": [[1.0]]}])
    groups = pending(journal, MEASURED, documents, PASSES)
    left = [(number, d["name"]) for number, group in groups for d in group]
    assert (0, documents[0]["name"]) not in left
    assert (1, documents[0]["name"]) in left


def test_a_row_needs_a_prediction_and_all_passes(tmp_path: Path) -> None:
    journal = Journal(tmp_path, resume=True)
    for name in ("a", "b"):
        journal.add(PREDICTED, [{"name": name, "kind": "DLRM", "predicted_us": 10.0, "naive_us": 5.0}])
    journal.add(MEASURED, [{"name": "a", "pass": p, "steps_us": [[10.0, 12.0, 11.0]]} for p in range(PASSES)])
    journal.add(MEASURED, [{"name": "b", "pass": 0, "steps_us": [[10.0]]}])
    assert [r.name for r in rows_of(journal)] == ["a"]


def test_the_bar_is_the_published_figure_or_the_noise() -> None:
    quiet = scores([row(str(i), "DLRM", 110.0, 100.0, 100.0) for i in range(3)])[0]
    assert quiet.met is False
    noisy = scores([row(str(i), "DLRM", 110.0, 90.0, 112.0) for i in range(3)])[0]
    assert noisy.met is True
