"""Operators behind one interface: what they compute, and what they refuse."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from stepsight.calibrate.lookups.microbench import measure_lookups
from stepsight.calibrate.lookups.operators import FBGEMM_OPTIMIZERS, EmbeddingBagTables, FbgemmTables
from stepsight.errors import StepsightError
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import FBGEMM, Lookup, TableLookup

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
    (sample,) = measure_lookups([replace(TWO, optimizer=optimizer)], repeats=2)
    assert sample.times_us.shape == (1, 2, 2, 1)
    assert np.all(sample.times_us > 0)


@pytest.mark.usefixtures("fbgemm")
def test_both_operators_pool_and_update_the_same_rows() -> None:
    values = sum(t.rows * t.dim for t in TWO.tables)
    start = torch.rand(values, generator=torch.Generator().manual_seed(1))
    pooled, updated = [], []
    for operator in (EmbeddingBagTables, FbgemmTables):
        memory = start.clone()
        tables = operator(TWO, "cpu", memory)
        batch = tables.batch(np.random.default_rng(2))
        outputs = [call() for call in tables.forward(batch)]
        for call in tables.backward(batch, outputs):
            call()
        pooled.append(torch.cat(outputs, 1).detach())
        updated.append(memory)
    assert not torch.equal(updated[0], start)
    torch.testing.assert_close(pooled[0], pooled[1])
    torch.testing.assert_close(updated[0], updated[1])


def test_without_fbgemm_the_pip_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fbgemm_gpu", None)
    with pytest.raises(StepsightError, match=r"pip install fbgemm-gpu-cpu"):
        FbgemmTables(TWO, "cpu")


@pytest.mark.parametrize(
    ("lookup", "device", "problem"),
    [
        (replace(TWO, optimizer="adam"), "cpu", "no fused adam"),
        (TWO, "cuda", "on a CPU only"),
        (replace(TWO, tables=(replace(TWO.tables[0], dim=6),)), "cpu", "4, 8, 12"),
        (replace(TWO, tables=(replace(TWO.tables[0], dtype="fp16"),)), "cpu", "fp32"),
    ],
)
def test_what_fbgemm_cannot_do_on_a_cpu_is_refused(lookup: Lookup, device: str, problem: str) -> None:
    with pytest.raises(StepsightError, match=problem):
        FbgemmTables(lookup, device)


def test_tables_that_do_not_fit_the_memory_given_are_refused() -> None:
    with pytest.raises(StepsightError, match="need more than"):
        EmbeddingBagTables(TWO, "cpu", torch.zeros(900))
