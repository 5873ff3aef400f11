"""The work of a lookup on a CPU, by operator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsight.kernels.embedding.cpu.work import work
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import EMBEDDING_BAG, FBGEMM, TableLookup

CACHES = (32e3, 1e6, 32e6)
TABLE = TableLookup(100_000, 64, 512, 8.0, IndexDistribution.zipf(0.9))
PHASES = ("forward", "backward")


@pytest.mark.parametrize("operator", [EMBEDDING_BAG, FBGEMM])
@pytest.mark.parametrize("phase", PHASES)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 2_000_000),
    dim=st.sampled_from([4, 16, 24, 128, 256]),
    batch=st.integers(1, 4096),
    pooling=st.floats(0.1, 50),
    skew=st.floats(0, 1.3),
)
def test_work_is_finite_and_never_negative(
    operator: str, phase: str, rows: int, dim: int, batch: int, pooling: float, skew: float
) -> None:
    table = TableLookup(rows, dim, batch, pooling, IndexDistribution.zipf(skew))
    done = work([table], CACHES, phase, "rowwise_adagrad", operator)
    assert np.all(np.isfinite(done)) and np.all(done >= 0)


@pytest.mark.parametrize("phase", PHASES)
def test_only_fbgemm_walks_the_page_tables_in_ascending_order(phase: str) -> None:
    kinds = [work([TABLE], CACHES, phase, "sgd", operator).shape[1] for operator in (EMBEDDING_BAG, FBGEMM)]
    assert kinds[0] != kinds[1]


@pytest.mark.parametrize("phase", PHASES)
def test_rows_asked_for_again_leave_less_to_do(phase: str) -> None:
    skewed, even = (
        work([replace(TABLE, indices=IndexDistribution.zipf(a))], CACHES, phase, "sgd", FBGEMM)[0]
        for a in (1.2, 0.0)
    )
    counts = [i for i in range(len(even)) if phase == "forward" or i != 6]  # all but unpredictable branches
    assert np.all(skewed[counts] <= even[counts] * (1 + 1e-9))
    assert skewed.sum() < even.sum()


def test_state_of_the_optimizer_is_work_too() -> None:
    sgd, rowwise, adagrad = (
        work([TABLE], CACHES, "backward", optimizer, FBGEMM)[0]
        for optimizer in ("sgd", "rowwise_adagrad", "adagrad")
    )
    assert sgd.sum() < rowwise.sum() < adagrad.sum()
    assert np.count_nonzero(sgd != adagrad) == 1
