"""A CPU's lookups from its own measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepsight.calibrate.lookup_fit import fit_tables
from stepsight.errors import InputError, StepsightError
from stepsight.estimate import Source
from stepsight.kernels.embedding.cpu.measured import FORMAT, MeasuredLookups
from stepsight.kernels.embedding.cpu.work import work
from stepsight.program.job import Kernel
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import Lookup, TableLookup

CACHES = (32e3, 1e6, 32e6)


def random_tables(count: int, seed: int) -> list[TableLookup]:
    rng = np.random.default_rng(seed)
    return [
        TableLookup(
            rows=int(10 ** rng.uniform(2, 6)),
            dim=int(rng.choice([16, 64, 128])),
            batch=int(2 ** rng.uniform(8, 12)),
            pooling=round(float(10 ** rng.uniform(0, 1.5)), 1),
            indices=IndexDistribution.zipf(round(float(rng.uniform(0, 1.3)), 2)),
        )
        for _ in range(count)
    ]


def true_us(tables: list[TableLookup], phase: str) -> np.ndarray:
    """A made-up machine: rates for every kind of work, and a cost that no sum of work has."""
    done = work(tables, CACHES, phase)
    rates = np.linspace(1e-4, 3e-4, done.shape[1])
    rates[0] = 15.0
    bend = np.array([1 + 0.3 * np.sin(np.log(t.batch)) for t in tables])
    return (done @ rates) * bend


@pytest.fixture(scope="module")
def fitted() -> MeasuredLookups:
    tables = random_tables(240, seed=1)
    times = {phase: true_us(tables, phase) for phase in ("forward", "backward")}
    return fit_tables(tables, times, caches=CACHES)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_unseen_tables_are_timed_within_a_few_percent(fitted: MeasuredLookups, phase: str) -> None:
    unseen = random_tables(60, seed=2)
    error = np.abs(fitted.table_us(phase, unseen) / true_us(unseen, phase) - 1)
    assert np.median(error) < 0.04


def test_a_lookup_is_the_sum_of_its_tables_in_any_order(fitted: MeasuredLookups) -> None:
    tables = random_tables(7, seed=3)
    kernels = [Kernel("embedding", lookup=Lookup(tuple(order))) for order in (tables, tables[::-1])]
    one, other = fitted.estimate(kernels).time_us
    assert one == pytest.approx(other)
    assert one == pytest.approx(fitted.table_us("forward", tables).sum())


def test_costs_of_single_tables_add_up_for_a_search(fitted: MeasuredLookups) -> None:
    tables = random_tables(5, seed=4)
    costs = fitted.table_costs(tables)
    assignment = np.array([[1, 0, 1, 0, 0], [0, 1, 0, 1, 1]])
    both = fitted.forward_us(assignment @ costs.forward)
    kernel = Kernel("embedding", lookup=Lookup((tables[0], tables[2])))
    assert both[0] == pytest.approx(fitted.estimate([kernel]).time_us[0])


def test_a_folder_keeps_the_model(fitted: MeasuredLookups, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    again, tables = MeasuredLookups.load(tmp_path), random_tables(20, seed=5)
    np.testing.assert_allclose(
        again.table_us("backward", tables), fitted.table_us("backward", tables), rtol=1e-2
    )
    assert again.caches == CACHES
    assert (
        Source(int(again.estimate([Kernel("embedding", lookup=Lookup(tuple(tables)))]).source[0]))
        == Source.MEASURED
    )


def test_few_samples_fit_rates_alone() -> None:
    tables = random_tables(12, seed=6)
    times = {phase: true_us(tables, phase) for phase in ("forward", "backward")}
    model = fit_tables(tables, times, caches=CACHES)
    assert model.phases["forward"].residual is None
    assert np.all(model.phases["forward"].rates >= 0)


def test_nothing_measured_and_a_damaged_file_are_said(tmp_path: Path) -> None:
    with pytest.raises(StepsightError, match="no measured lookups"):
        fit_tables([], {})
    with pytest.raises(InputError, match="cannot be read"):
        MeasuredLookups.load(tmp_path)
    (tmp_path / "embedding.json").write_text(f'{{"format": {FORMAT}}}')
    with pytest.raises(InputError, match="damaged"):
        MeasuredLookups.load(tmp_path)


def test_a_model_of_another_version_asks_to_be_fitted_anew(tmp_path: Path) -> None:
    (tmp_path / "embedding.json").write_text('{"phases": {}}')
    with pytest.raises(InputError, match="--resume"):
        MeasuredLookups.load(tmp_path)
