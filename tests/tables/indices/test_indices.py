"""Index distributions as users write them."""

from __future__ import annotations

import numpy as np
import pytest

from stepsight.errors import InputError, StepsightError
from stepsight.tables.indices.distributions import IndexDistribution


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("uniform", IndexDistribution.uniform()),
        (None, IndexDistribution.uniform()),
        ({"zipf": 1.05}, IndexDistribution.zipf(1.05)),
        ({"hot": {"fraction": 0.01, "probability": 0.9}}, IndexDistribution.hot(0.01, 0.9)),
        ({"hot": [0.01, 0.9]}, IndexDistribution.hot(0.01, 0.9)),
        ({"uniform": "ordered"}, IndexDistribution.uniform(ordered=True)),
        ({"file": "x.npz", "table": 3}, IndexDistribution.file("x.npz", 3)),
    ],
)
def test_the_values_of_a_workload_file_are_understood(value: object, expected: IndexDistribution) -> None:
    assert IndexDistribution.parse(value, "w.toml: tables[0].indices") == expected
    assert IndexDistribution.parse(expected.value, "again") == expected


@pytest.mark.parametrize(
    "value", ["gauss", {"zipf": "steep"}, {"zipf": -1}, {"hot": 3}, {"zipf": 1, "a": 1}, 7]
)
def test_anything_else_is_refused_by_place_and_with_the_fix(value: object) -> None:
    with pytest.raises(InputError, match=r"w\.toml: tables\[0\]\.indices.*zipf = 1\.05"):
        IndexDistribution.parse(value, "w.toml: tables[0].indices")


def test_a_hot_set_must_be_a_share() -> None:
    with pytest.raises(StepsightError, match="hot set"):
        IndexDistribution.hot(2.0, 0.5)


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 1000, 123_457])
@pytest.mark.parametrize("exponent", [0.3, 1.0, 1.3])
def test_zipf_popularity_is_grouped_without_losing_rows_or_lookups(rows: int, exponent: float) -> None:
    counts, shares = IndexDistribution.zipf(exponent).popularity(rows)
    assert counts.sum() == rows
    assert (counts * shares).sum() == pytest.approx(1)
    exact = np.arange(1, rows + 1.0) ** -exponent
    assert shares[0] == pytest.approx(exact[0] / exact.sum(), rel=1e-3)


def test_zipf_zero_is_uniform() -> None:
    zipf, uniform = IndexDistribution.zipf(0.0), IndexDistribution.uniform()
    assert zipf.stats(5_000, 2_000).unique_rows == uniform.stats(5_000, 2_000).unique_rows


def test_statistics_are_computed_once() -> None:
    distribution = IndexDistribution.zipf(1.2)
    assert distribution.stats(1_000, 500) is distribution.stats(1_000, 500)
