"""Words and colours: every category and source that can appear has a style on the page."""

from __future__ import annotations

import pytest

from stepsight.estimate import Source
from stepsight.kernels.families import FAMILIES
from stepsight.prediction.breakdown import EXPOSED, IDLE, WAITING
from stepsight.prediction.display import Look, look, source_look
from stepsight.report.pieces import asset

ALL = {family.category for family in FAMILIES.values()} | {EXPOSED, IDLE, WAITING, "communication", "host"}


@pytest.mark.parametrize("category", sorted(ALL))
def test_every_category_has_its_colour(category: str) -> None:
    assert f".c-{look(category).colour} {{" in asset("page.css") or f".c-{look(category).colour}," in asset(
        "page.css"
    )


@pytest.mark.parametrize("source", list(Source))
def test_every_source_has_its_words_and_colour(source: Source) -> None:
    shown = source_look(source.label)
    assert shown.word != source.label
    assert f".c-{shown.colour} {{" in asset("page.css")


def test_a_category_that_nobody_listed_keeps_its_name() -> None:
    assert look("state_space") == Look("state space", "other")
