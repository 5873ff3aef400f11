"""FBGEMM's lookups of whole ranks: from the journal's records to a model, without measuring."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="calibration needs torch")

from stepsight.calibrate.bench import fused_bench
from stepsight.calibrate.bench.kernel_bench import rehearsal_documents
from stepsight.calibrate.rehearsal import BATCHES_PER_RANK, random_torchrec
from stepsight.tables.lookup import FBGEMM


def made_up(document, rank: int) -> list[list[float]]:
    """Three turns of a processor that needs 20 ns for a value forward and 100 ns backward."""
    values = sum(t.lookups * t.dim for t in fused_bench.own_lookup(document, rank).tables)
    return [[50 + 0.02 * values, 80 + 0.1 * values]] * 3


def test_records_become_a_model_of_all_tables_of_a_rank():
    documents = [random_torchrec(2, seed) for seed in range(1000, 1016)]
    answers = [[made_up(d, rank) for d in documents] for rank in range(2)]
    model = fused_bench.fit(fused_bench.records(documents, answers))
    assert model is not None
    assert model.operator == FBGEMM
    unseen = random_torchrec(2, 2000)
    lookup = fused_bench.own_lookup(unseen, 0)
    for phase, wanted in zip(("forward", "backward"), made_up(unseen, 0)[0], strict=True):
        assert model.lookup_us(phase, lookup.tables, lookup.optimizer) == pytest.approx(wanted, rel=0.15)


def test_a_journal_without_such_lookups_has_no_such_model():
    assert fused_bench.fit([{"phase": "forward", "rows": 10, "times_us": [[1.0]]}]) is None


@pytest.mark.parametrize("stack", ["eager", "torchrec"])
def test_every_batch_size_is_rehearsed_equally_often(stack):
    batches = [d["batch"] for d in rehearsal_documents(2, 16, 0, stack)]
    counts = np.unique(batches, return_counts=True)
    assert counts[0].tolist() == [2 * size for size in BATCHES_PER_RANK]
    assert set(counts[1].tolist()) == {4}
