"""What answers say about themselves must be what leaving curves out shows."""

from __future__ import annotations

from lab.score.collectives.transfers import transfer_scores
from stepsight.constants import area

C = area("collectives")


def test_stated_spreads_cover_the_measured_transfer_errors():
    errors = {score.name: score.mape for score in transfer_scores()}
    assert errors["from other kinds, one node"] <= C.KIND_SPREAD
    assert errors["from other machines, one node"] <= C.RELATIVE_SPREAD
    assert errors["from other node counts, same machine"] <= C.NODE_SPREAD
    assert errors["from other machines, several nodes"] <= C.OTHER_NODE_SPREAD + 0.005
