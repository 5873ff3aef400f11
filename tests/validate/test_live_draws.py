"""Draws of live models in the scorecard."""

from __future__ import annotations

from pathlib import Path

from stepsight.score import Score
from stepsight.validate.scoreboard import add_draw, load_result


def line(name: str, gmae: float) -> Score:
    return Score("live", name, 16, gmae, gmae, "random", exposure="blind")


def test_draws_stand_beside_each_other(tmp_path: Path) -> None:
    add_draw(tmp_path, "here", 1, [line("DLRM", 0.03)], 10.0)
    path = add_draw(tmp_path, "here", 2, [line("DLRM", 0.05), line("NLP", 0.02)], 20.0)
    found = load_result(path)
    assert [s.name for s in found.scores] == [
        "draw 1 on here, DLRM",
        "draw 2 on here, DLRM",
        "draw 2 on here, NLP",
    ]
    assert found.seconds == 30.0 and {s.exposure for s in found.scores} == {"blind"}


def test_a_draw_that_goes_on_replaces_its_own_lines(tmp_path: Path) -> None:
    add_draw(tmp_path, "here", 1, [line("DLRM", 0.03), line("NLP", 0.02)], 10.0)
    found = load_result(add_draw(tmp_path, "here", 1, [line("DLRM", 0.04)], 5.0))
    assert {s.name: s.gmae for s in found.scores} == {
        "draw 1 on here, DLRM": 0.04,
        "draw 1 on here, NLP": 0.02,
    }
