"""The page of a prediction: how long, why, and how far to trust it, for any job."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from stepsight.prediction.answer import MemoryLine, Prediction
from stepsight.prediction.display import time
from stepsight.report.prediction import page

from .predictions import uneven

VOID = {"meta", "link", "path", "rect", "circle", "input"}
MEGABYTE = 1_000_000


class _Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text.append(data)


def read(prediction: Prediction) -> str:
    """The words on the page; its elements must be balanced."""
    parser = _Balance()
    parser.feed(page(prediction))
    assert parser.open == []
    return " ".join(" ".join(parser.text).split()).partition("Words on this page")[0]


def test_it_says_how_long_why_and_on_what_it_rests(dlrm: Prediction) -> None:
    words = read(dlrm)
    assert f"{time(dlrm.step_time_us).split()[0]} {time(dlrm.step_time_us).split()[1]} per step" in words
    assert f"90 % interval {time(dlrm.low_us)} to {time(dlrm.high_us)}" in words
    assert "If host work took no time, the step would take" in words
    for title in ("Where the step goes", "Ranks", "Timeline", "Memory", "How far to trust it"):
        assert title in words


def test_every_category_has_its_time(dlrm: Prediction) -> None:
    words = read(dlrm)
    for us in dlrm.breakdown_us.values():
        assert time(us) in words


def test_a_measurement_stands_beside_the_prediction(dlrm: Prediction) -> None:
    measured = dataclasses.replace(dlrm, measured_us=dlrm.step_time_us / 1.25)
    assert f"measured {time(measured.measured_us or 0)} (prediction +25.0 %)" in read(measured)


def test_one_rank_makes_sense_alone() -> None:
    words = read(uneven([2048]))
    assert "One rank." in words
    assert "imbalance" not in words


def test_ranks_that_do_the_same_are_one_row(dlrm: Prediction) -> None:
    words = read(dlrm)
    assert "All 4 ranks do the same at the same time." in words
    assert "all 4" in words


def test_ranks_that_differ_have_a_row_each(waiting: Prediction) -> None:
    words = read(waiting)
    assert "on the least busy rank" in words
    assert "Rank 3 waits least: the others wait for it" in words
    assert "waiting for other ranks" in words


def test_of_many_different_ranks_the_few_that_stand_out_are_shown() -> None:
    whole = page(uneven([1024 + 8 * n for n in range(64)]))
    assert "busiest, rank" in whole
    assert "median, rank" in whole
    assert "not drawn; shown are" in whole


def test_a_thousand_ranks_alike_cost_no_more_than_one() -> None:
    whole = page(uneven([2048] * 1024))
    assert "All 1,024 ranks do the same at the same time." in whole
    assert len(whole) < MEGABYTE / 10


def test_a_processor_that_runs_its_own_kernels_has_a_page_too() -> None:
    words = read(uneven([512, 512], synchronous=True))
    assert "Timeline" in words


def test_what_does_not_fit_is_said_first(dlrm: Prediction) -> None:
    full = dataclasses.replace(dlrm, memory=MemoryLine({"tables": 20e9}, 16e9, 1))
    words = read(full)
    assert "Does not fit into memory, by 4.00 GB." in words
    assert "does not fit, by 4.00 GB" in words.split("Memory", 1)[1]


def test_a_prediction_without_memory_has_no_such_section(waiting: Prediction) -> None:
    assert "Memory" not in read(waiting)


def test_names_from_files_cannot_change_the_page(waiting: Prediction) -> None:
    evil = "</script><script>alert(1)</script>"
    whole = page(dataclasses.replace(waiting, workload=evil, platform=evil, notes=(evil,)))
    assert "<script>alert" not in whole


def test_kernels_cannot_end_the_script_that_carries_them() -> None:
    job_with = uneven([64])
    op = job_with.timeline.priced.job.programs[0].ops[0]
    object.__setattr__(op, "name", "</script><script>alert(1)</script>")
    assert "<script>alert" not in page(job_with)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_trust_is_put_into_words(waiting: Prediction, share: float) -> None:
    sources = {"learned": 1.0 - share, "roofline": share}
    coverage = dataclasses.replace(waiting.coverage, kernels_by_source=sources)
    words = read(dataclasses.replace(waiting, coverage=coverage))
    assert ("% from speed of light" in words) == (share > 0)


def test_the_page_needs_no_other_file(dlrm: Prediction) -> None:
    whole = page(dlrm)
    assert not re.search(r"https?://", whole)
    assert len(whole) < MEGABYTE / 10
