"""Published steps and lookups of recommender models, where the measured tables are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.score.e2e import dlrm_hugectr
from lab.score.embedding import h100

DATA = Path(__file__).parents[4] / "shared" / "data"


@pytest.mark.skipif(not (DATA / h100.FILE).is_file(), reason="measured tables are absent")
def test_lookups_on_an_h100_are_within_the_bar_without_a_fit():
    figures = h100.figures(DATA)
    assert figures["forward_gmae"] <= h100.BAR
    assert figures["backward_gmae"] <= h100.BAR


@pytest.mark.skipif(not (DATA / dlrm_hugectr.FILE).is_file(), reason="measured tables are absent")
def test_hugectrs_steps_are_within_the_bar():
    found = dlrm_hugectr.rows(DATA)
    for name in (dlrm_hugectr.SET, dlrm_hugectr.EARLIER):
        assert np.median([abs(row.error) for row in found if row.set == name]) <= 0.12
