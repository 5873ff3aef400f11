"""Ranks that did the same are one picture; of many, the telling ones are kept."""

from __future__ import annotations

import pytest

from stepsight.prediction.answer import Prediction
from stepsight.report.ranks import Alike, alike, most_telling

from .predictions import uneven


def test_ranks_that_did_the_same_at_the_same_time_are_gathered(dlrm: Prediction) -> None:
    assert alike(dlrm.timeline) == [Alike((0, 1, 2, 3))]


def test_a_rank_that_waits_differently_stands_alone(waiting: Prediction) -> None:
    assert alike(waiting.timeline) == [Alike((0, 2)), Alike((1,)), Alike((3,))]


@pytest.mark.parametrize(
    ("ranks", "label"),
    [
        ((3,), "rank 3"),
        (tuple(range(1024)), "ranks 0–1,023"),
        ((0, 2), "ranks 0, 2"),
        ((0, 2, 4, 6), "ranks 0, 2, 4 and 1 more"),
    ],
)
def test_a_set_of_ranks_has_a_short_name(ranks: tuple[int, ...], label: str) -> None:
    assert Alike(ranks).label == label


def test_the_busiest_and_the_least_busy_are_kept_first() -> None:
    prediction = uneven([1024, 2048, 512, 8192, 4096])
    kept = most_telling(alike(prediction.timeline), prediction.ranks, 3)
    assert [a.first for a in kept] == [0, 2, 3]
