"""Ranks that did the same are one picture; of many, the telling ones are kept."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from stepsight import predict
from stepsight.prediction.answer import Prediction
from stepsight.prediction.display import time
from stepsight.report.prediction import show
from stepsight.report.ranks import RankSet, identical_ranks, identical_summaries, most_telling, rank_section

from .predictions import uneven


def test_ranks_that_did_the_same_at_the_same_time_are_gathered(dlrm: Prediction) -> None:
    assert identical_ranks(dlrm.timeline) == [RankSet((0, 1, 2, 3))]


def test_a_rank_that_waits_differently_stands_alone(waiting: Prediction) -> None:
    assert identical_ranks(waiting.timeline) == [RankSet((0, 2)), RankSet((1,)), RankSet((3,))]


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
    assert RankSet(ranks).label == label


def test_the_busiest_and_the_least_busy_are_kept_first() -> None:
    prediction = uneven([1024, 2048, 512, 8192, 4096])
    kept = most_telling(identical_ranks(prediction.timeline), prediction.ranks, 3)
    assert [a.first for a in kept] == [0, 2, 3]


def test_ranks_with_the_same_figures_are_one_row() -> None:
    found = uneven([512, 512, 4096, 512])
    sets = identical_summaries(found.ranks)
    assert [one.ranks for one in sets] == [(0, 1, 3), (2,)]


def test_the_console_lists_sets_of_ranks_not_the_first_few() -> None:
    console = Console(width=120, record=True, file=StringIO())
    show(uneven([512] * 8 + [1024] * 8), console)
    table = console.export_text().split("ranks\n", 1)[-1]
    assert " 0–7 " in table and " 8–15 " in table and "more (--json" not in table


def test_a_page_of_a_pipeline_shows_every_stage_with_its_own_figures() -> None:
    document = {
        "kind": "transformer", "family": "llama", "layers": 8, "hidden": 1024, "heads": 16, "ffn": 2816,
        "vocab": 128_000, "sequence": 1024, "global_batch": 64,
        "training": {"framework": "megatron"}, "parallel": {"pipeline": 4, "tensor": 2},
    }  # fmt: skip
    prediction = predict(document, "8xH100-SXM")
    drawn = rank_section(prediction.ranks)
    for rank in (0, 2, 4, 6):
        assert f"ranks {rank}–{rank + 1}" in drawn
        assert time(prediction.ranks[rank].compute_us) in drawn
    busiest = most_telling(identical_ranks(prediction.timeline), prediction.ranks, 1)
    assert busiest[0].first_of_job == max(prediction.ranks, key=lambda r: (r.compute_us, -r.rank)).rank


def test_ranks_that_print_the_same_figures_are_one_row(dlrm: Prediction) -> None:
    first, *others = dlrm.ranks
    nearly = replace(first, compute_us=first.compute_us + 1e-4)
    assert identical_summaries([first, nearly, *others]) == [RankSet((0, 1, 2, 3, 4))]
