"""Fitting an operator whose calls serve many tables, from the times of whole calls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lab.fit.commands.embedding import command
from stepsight.calibrate.lookups.fit import fit_samples, operator_of, table_sets
from stepsight.calibrate.lookups.microbench import LookupSample, write_samples
from stepsight.errors import StepsightError
from stepsight.kernels.embedding.cpu.measured import CalibratedLookups, MeasuredLookups
from stepsight.kernels.embedding.cpu.work import work
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import FBGEMM, Lookup, TableLookup

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


def random_samples(count: int, seed: int, optimizer: str = "sgd") -> list[LookupSample]:
    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        tables = tuple(
            TableLookup(
                int(10 ** rng.uniform(2, 6)), int(rng.choice([16, 64, 128])), 1024,
                round(float(10 ** rng.uniform(0, 1.5)), 1),
                IndexDistribution.zipf(round(float(rng.uniform(0, 1.3)), 2)),
            )
            for _ in range(rng.integers(1, 6))
        )  # fmt: skip
        lookup = Lookup(tables, optimizer, operator=FBGEMM)
        times = [[true_us(lookup, phase)] for phase in START_US]
        samples.append(LookupSample(lookup, np.array([[times]] * 2)))
    return samples


@pytest.fixture(scope="module")
def fitted() -> MeasuredLookups:
    samples = random_samples(250, seed=1)
    return fit_samples(samples, CACHES, table_sets(samples))


@pytest.mark.parametrize("phase", START_US)
def test_unseen_lookups_are_timed_from_whole_calls(fitted: MeasuredLookups, phase: str) -> None:
    unseen = [s.lookup for s in random_samples(40, seed=2)]
    predicted = [fitted.lookup_us(phase, x.tables) for x in unseen]
    assert np.median(np.abs(np.array(predicted) / [true_us(x, phase) for x in unseen] - 1)) < 0.05


def test_a_call_starts_once_whatever_its_tables(fitted: MeasuredLookups) -> None:
    tables = random_samples(4, seed=3)[0].lookup.tables + random_samples(1, seed=4)[0].lookup.tables
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


def test_each_optimizer_has_a_backward_of_its_own() -> None:
    samples = random_samples(60, seed=5) + random_samples(60, seed=5, optimizer="adagrad")
    model = fit_samples(samples, CACHES, table_sets(samples))
    assert set(model.phases) == {"forward", "backward sgd", "backward adagrad"}
    tables = samples[0].lookup.tables
    assert model.lookup_us("backward", tables, "adagrad") > 1.2 * model.lookup_us("backward", tables, "sgd")
    with pytest.raises(StepsightError, match=r"rowwise_adagrad.*only adagrad, sgd"):
        model.lookup_us("backward", tables, "rowwise_adagrad")


def test_samples_of_two_operators_are_not_mixed() -> None:
    (sample,) = random_samples(1, seed=6)
    other = replace(sample, lookup=replace(sample.lookup, operator=""))
    with pytest.raises(StepsightError, match="several operators"):
        operator_of([sample, other])


def test_the_command_puts_an_operator_into_a_platform(tmp_path: Path) -> None:
    write_samples(tmp_path / "s.json", random_samples(30, seed=7), CACHES)
    arguments = ["--samples", str(tmp_path / "s.json"), "--platform", str(tmp_path), "--json"]
    told = json.loads(CliRunner().invoke(command, arguments, catch_exceptions=False).stdout)
    assert told["operator"] == FBGEMM and told["samples"] == 30
    assert set(told["phases"]) == {"forward", "backward sgd"}
    assert set(CalibratedLookups.load(tmp_path).models) == {FBGEMM}


def test_samples_need_a_platform(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--samples", str(tmp_path / "s.json")])
    assert done.exit_code == 2 and "go together" in done.output
