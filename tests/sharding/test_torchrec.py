"""Our plan as TorchRec's own object; skipped where TorchRec cannot be loaded."""

import pytest

pytest.importorskip("torchrec", reason="TorchRec is not installed (torchrec==1.8.0, fbgemm-gpu-cpu==1.8.0)")

from stepsight.run.torchrec import sharding_plan
from stepsight.sharding.search import search
from stepsight.tables.torchrec_plan import plan_from_document, torchrec_document


def test_our_plan_as_a_torchrec_object_and_back(pricer):
    found = search(pricer, budget_s=0.2).plan.named("torchrec")
    document = torchrec_document(found)
    theirs = sharding_plan(document)
    assert plan_from_document(theirs._serialize(), pricer.costs.tables, 4) == found
    assert theirs._serialize() == document
