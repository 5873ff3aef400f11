"""Sentences of the reports."""

from __future__ import annotations

from stepsight.prediction.memory import MemoryLine
from stepsight.report.prediction import fits_words, grouped_notes


def test_notes_that_differ_only_in_numbers_are_one() -> None:
    links = [f"pipeline {n} send_recv: scaled to this group (±35%)" for n in range(8)]
    assert grouped_notes(["first", *links, "last"]) == [
        "first",
        "pipeline 0–7 send_recv: scaled to this group (±35%) (8 similar notes)",
        "last",
    ]


def test_numbers_in_names_tell_notes_apart() -> None:
    notes = ["gemm: fitted on A100-SXM4-40G", "gemm: fitted on A100-SXM4-80G", "flash2: new", "flash3: new"]
    assert grouped_notes(notes) == notes


def test_a_note_said_twice_is_said_once() -> None:
    assert grouped_notes(["the same", "the same"]) == ["the same"]


def test_a_verdict_on_memory_states_its_doubt() -> None:
    assert fits_words(MemoryLine({"activations": 40e9}, 80e9)) == "fits"
    assert fits_words(MemoryLine({"activations": 78e9}, 80e9)) == "fits with a probability of 62 %"
    assert (
        fits_words(MemoryLine({"activations": 82e9}, 80e9)) == "does not fit, by 2.00 GB (38 % chance to fit)"
    )
    assert fits_words(MemoryLine({"activations": 200e9}, 80e9)) == "does not fit, by 120.00 GB"
