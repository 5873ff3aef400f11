"""Fitting an operator whose calls serve many tables, from the times of whole calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepsight.calibrate.draws import random_torchrec, rank_tables
from stepsight.calibrate.lookup_fit import fit_calls, fit_lookups
from stepsight.calibrate.session import fused_records
from stepsight.errors import StepsightError
from stepsight.kernels.embedding.cpu.measured import MeasuredLookups
from stepsight.kernels.embedding.cpu.work import work
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import FBGEMM, Lookup, TableLookup
from tests.calibrate.synthetic import samples

CACHES = (32e3, 1e6, 32e6)
START_US = {"forward": 120.0, "backward": 40.0}


def true_us(lookup: Lookup, phase: str) -> float:
    """A made-up machine: a start for each call, rates for work, and a cost that no sum of work has."""
    done = work(lookup.tables, CACHES, phase, lookup.optimizer, FBGEMM)
    rates = np.linspace(1e-4, 3e-4, done.shape[1])
    rates[0] = 5.0
    bend = np.array([1 + 0.2 * np.sin(np.log(t.rows)) for t in lookup.tables])
    slower = 1.5 if lookup.optimizer == "adagrad" and phase == "backward" else 1.0
    return START_US[phase] + slower * float((done @ rates * bend).sum())


def random_lookups(count: int, seed: int, optimizer: str = "sgd") -> list[Lookup]:
    rng = np.random.default_rng(seed)
    lookups = []
    for _ in range(count):
        tables = tuple(
            TableLookup(
                int(10 ** rng.uniform(2, 6)), int(rng.choice([16, 64, 128])), 1024,
                round(float(10 ** rng.uniform(0, 1.5)), 1),
                IndexDistribution.zipf(round(float(rng.uniform(0, 1.3)), 2)),
            )
            for _ in range(rng.integers(1, 6))
        )  # fmt: skip
        lookups.append(Lookup(tables, optimizer, operator=FBGEMM))
    return lookups


@pytest.fixture(scope="module")
def fitted() -> MeasuredLookups:
    lookups = random_lookups(250, seed=1)
    return fit_calls(lookups, [{phase: true_us(x, phase) for phase in START_US} for x in lookups], CACHES)


@pytest.mark.parametrize("phase", START_US)
def test_unseen_lookups_are_timed_from_whole_calls(fitted: MeasuredLookups, phase: str) -> None:
    unseen = random_lookups(40, seed=2)
    predicted = [fitted.lookup_us(phase, x.tables) for x in unseen]
    assert np.median(np.abs(np.array(predicted) / [true_us(x, phase) for x in unseen] - 1)) < 0.05


def test_a_call_starts_once_whatever_its_tables(fitted: MeasuredLookups) -> None:
    tables = random_lookups(4, seed=3)[0].tables + random_lookups(1, seed=4)[0].tables
    start = fitted.phases["forward"].start_us
    assert start == pytest.approx(START_US["forward"], rel=0.3)
    assert fitted.lookup_us("forward", tables) == pytest.approx(
        fitted.table_us("forward", tables).sum() + start
    )
    assert fitted.lookup_us("forward", ()) == 0.0
    costs = fitted.table_costs(tables)
    ranks = np.array([np.ones(len(tables)), np.zeros(len(tables))])
    assert fitted.forward_us(ranks @ costs.forward) == pytest.approx(
        [fitted.lookup_us("forward", tables), 0.0]
    )


def test_an_optimizer_that_was_not_measured_is_refused(fitted: MeasuredLookups) -> None:
    assert set(fitted.phases) == {"forward", "backward sgd"}
    with pytest.raises(StepsightError, match=r"rowwise_adagrad.*only sgd"):
        fitted.lookup_us("backward", random_lookups(1, seed=5)[0].tables, "rowwise_adagrad")


def made_up(document: dict[str, Any], rank: int) -> list[list[float]]:
    """Three turns of a processor that needs 20 ns for a value forward and 100 ns backward."""
    values = sum(t.lookups * t.dim for t in rank_tables(document, rank).tables)
    return [[50 + 0.02 * values, 80 + 0.1 * values]] * 3


def test_records_become_a_model_of_all_tables_of_a_rank() -> None:
    documents = [random_torchrec(2, seed) for seed in range(1000, 1016)]
    answers = [[made_up(d, rank) for d in documents] for rank in range(2)]
    model = fit_lookups(fused_records(documents, answers))
    assert model is not None
    assert model.operator == FBGEMM
    unseen = random_torchrec(2, 2000)
    lookup = rank_tables(unseen, 0)
    for phase, wanted in zip(("forward", "backward"), made_up(unseen, 0)[0], strict=True):
        assert model.lookup_us(phase, lookup.tables, lookup.optimizer) == pytest.approx(wanted, rel=0.15)


def test_a_journal_with_few_lookups_has_no_model() -> None:
    assert fit_lookups([{"phase": "forward", "rows": 10, "times_us": [[1.0]]}]) is None


def test_lookups_whose_other_phase_was_deleted_from_the_journal_are_left_out() -> None:
    rows = samples(kernels=20, tables=60)["lookups"]
    last = max(i for i, row in enumerate(rows) if row["phase"] == "backward")
    assert fit_lookups([*rows[1:last], *rows[last + 1 :]]) is not None
