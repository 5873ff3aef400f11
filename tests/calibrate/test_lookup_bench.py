"""FBGEMM's operator on a CPU: what it computes, and what it refuses."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from stepsight.calibrate.lookup_bench import FbgemmTables, time_lookups
from stepsight.errors import StepsightError
from stepsight.run.dlrm import TableBatch, pooled
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import FBGEMM, FBGEMM_OPTIMIZERS, Lookup, TableLookup

torch = pytest.importorskip("torch", reason="operators are torch's")

TWO = Lookup(
    (
        TableLookup(100, 8, 16, 2.5, IndexDistribution.zipf(1.1)),
        TableLookup(50, 4, 16, 1.0, IndexDistribution.hot(0.1, 0.9)),
    ),
    operator=FBGEMM,
)


@pytest.fixture
def fbgemm() -> None:
    pytest.importorskip("fbgemm_gpu", reason="fbgemm-gpu-cpu is not installed (an extra)")


@pytest.mark.usefixtures("fbgemm")
@pytest.mark.parametrize("optimizer", FBGEMM_OPTIMIZERS)
def test_fbgemm_is_timed_as_one_call_for_all_tables(optimizer: str) -> None:
    times = np.array(time_lookups([replace(TWO, optimizer=optimizer)], repeats=2, seed=0))
    assert times.shape == (1, 2, 2)
    assert np.all(times > 0)


@pytest.mark.usefixtures("fbgemm")
def test_it_pools_as_torch_does_and_updates_rows() -> None:
    tables = FbgemmTables(TWO, seed=2, batches=1)
    tables.weights[:] = torch.rand(len(tables.weights), generator=torch.Generator().manual_seed(1))
    start, used, wanted = tables.weights.clone(), 0, []
    rng = np.random.default_rng(2)
    for i, table in enumerate(TWO.tables):
        flat = start[used : used + table.rows * table.dim].view(table.rows, table.dim)
        wanted.append(pooled(flat, TableBatch.sample(TWO, i, rng, "cpu")))
        used += table.rows * table.dim
    output = tables.module(*tables.batches[0])
    torch.testing.assert_close(output.detach(), torch.cat(wanted, 1))
    output.backward(torch.ones_like(output))
    assert not torch.equal(tables.weights, start)


def test_without_fbgemm_the_pip_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fbgemm_gpu", None)
    with pytest.raises(StepsightError, match=r"pip install fbgemm-gpu-cpu"):
        FbgemmTables(TWO, 0)


@pytest.mark.parametrize(
    ("lookup", "problem"),
    [
        (replace(TWO, optimizer="adam"), "no fused adam"),
        (replace(TWO, tables=(replace(TWO.tables[0], dim=6),)), "4, 8, 12"),
        (replace(TWO, tables=(replace(TWO.tables[0], dtype="fp16"),)), "fp32"),
    ],
)
def test_what_fbgemm_cannot_do_on_a_cpu_is_refused(lookup: Lookup, problem: str) -> None:
    with pytest.raises(StepsightError, match=problem):
        FbgemmTables(lookup, 0)
