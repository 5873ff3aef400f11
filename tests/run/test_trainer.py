"""What a trainer refuses: workloads that can be predicted only."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from stepsight.errors import InputError
from stepsight.run.trainer import Trainer
from stepsight.workload.files import load_workload

DLRM = Path(__file__).parents[2] / "examples" / "dlrm.toml"
SMALL = ["batch=8", "tables.rows=100", "parallel.ranks=1", "training.optimizer=sgd"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("parallel.cpu_lookup=fbgemm", "lookups with fbgemm can be predicted, not run.*cpu_lookup"),
    ],
)
def test_what_can_only_be_predicted_is_refused_with_the_fix(change: str, said: str) -> None:
    workload = load_workload(DLRM, [*SMALL, change])
    with pytest.raises(InputError, match=said):
        Trainer(workload, 0, "cpu", batches=1)
