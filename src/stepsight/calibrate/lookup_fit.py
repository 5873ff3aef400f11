"""A CPU's lookup model from times that were measured on it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsight.calibrate.draws import rank_tables, table_lookup
from stepsight.calibrate.journal import FUSED, PHASES, typical_us
from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray, IntArray
from stepsight.kernels.embedding.cpu.measured import MeasuredLookups, phase_name
from stepsight.kernels.embedding.cpu.work import (
    PhaseModel,
    Residual,
    detect_caches,
    features,
    radial_basis,
    work,
)
from stepsight.kernels.measured import FEWEST
from stepsight.tables.lookup import EMBEDDING_BAG, FBGEMM, Lookup, TableLookup

ASSUMED_CACHES = (float(32 << 10), float(1 << 20), float(32 << 20))
"""Where the system does not tell: the first levels of common server processors."""
FOLDS = 4


def fit_lookups(rows: Sequence[Mapping[str, Any]]) -> MeasuredLookups | None:
    """From the journal's records: of fused calls where there are some, else of single tables."""
    fused = _fit_fused([row for row in rows if row["phase"].startswith(FUSED)])
    if fused is not None:
        return fused
    lookups: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        known = json.dumps({k: v for k, v in row.items() if k not in ("phase", "times_us")}, sort_keys=True)
        lookups.setdefault(known, {})[row["phase"]] = row
    # A journal from which lines were deleted may hold a lookup's forward pass alone.
    whole = [of_phase for of_phase in lookups.values() if of_phase.keys() >= set(PHASES)]
    if len(whole) < FEWEST:
        return None
    times = {p: np.array([typical_us(of_phase[p]["times_us"]) for of_phase in whole]) for p in PHASES}
    forward = [of_phase["forward"] for of_phase in whole]
    return fit_tables([table_lookup(r) for r in forward], times, rounds=[r.get("round", 0) for r in forward])


def _fit_fused(rows: Sequence[Mapping[str, Any]]) -> MeasuredLookups | None:
    least: dict[tuple[str, int], dict[str, float]] = {}
    documents = {row["document"]["name"]: row["document"] for row in rows}
    for row in rows:
        for rank, times in enumerate(row["times_us"]):
            held = least.setdefault((row["document"]["name"], rank), {})
            held[row["phase"].removeprefix(FUSED)] = min(times)
    calls = [(rank_tables(documents[name], rank), us) for (name, rank), us in least.items()]
    calls = [(lookup, us) for lookup, us in calls if lookup.tables and us.keys() >= set(PHASES)]
    return fit_calls([lookup for lookup, _ in calls], [us for _, us in calls]) if calls else None


def fit_calls(
    lookups: Sequence[Lookup], times_us: Sequence[Mapping[str, float]], caches: Sequence[float] | None = None
) -> MeasuredLookups:
    """FBGEMM's model from the times of whole calls; calls for the same tables are left out together."""
    sets: dict[tuple[object, ...], int] = {}
    for lookup in lookups:
        sets.setdefault(lookup.tables, len(sets))
    return fit_tables(
        [table for lookup in lookups for table in lookup.tables],
        {phase: np.array([us[phase] for us in times_us]) for phase in PHASES},
        caches=caches, groups=[sets[lookup.tables] for lookup in lookups], operator=FBGEMM,
        optimizer=lookups[0].optimizer, calls=Calls.of([len(lookup.tables) for lookup in lookups]),
    )  # fmt: skip


def fit_tables(
    tables: Sequence[TableLookup], times_us: Mapping[str, FloatArray], *,
    caches: Sequence[float] | None = None, groups: Sequence[int] | None = None,
    operator: str = EMBEDDING_BAG, optimizer: str = "sgd", calls: Calls | None = None,
    rounds: Sequence[int] | None = None,
) -> MeasuredLookups:  # fmt: skip
    """From the times of single tables, or of ``calls`` for many tables, by phase.

    ``groups`` names which of the calls are equal, ``rounds`` which were measured in the same minute.
    """
    if not tables:
        raise StepsightError("no measured lookups to fit an embedding model from")
    levels = tuple(caches or detect_caches() or ASSUMED_CACHES)
    phases = {}
    for phase, times in times_us.items():
        seen = work(tables, levels, phase, optimizer, operator), features(tables, levels)
        folds = np.asarray(groups if groups is not None else range(len(times)), dtype=np.int64) % FOLDS
        together = np.asarray(rounds if rounds is not None else [0] * len(times), dtype=np.int64)
        phases[phase_name(phase, operator, optimizer)] = fit_steady(
            *seen, np.asarray(times), folds, together, calls
        )
    return MeasuredLookups(levels, phases, {}, operator)


TURNS = 3
STEADY_US = 300.0
"""Shorter calls are disturbed by more than the minute (their repeats differ by 15–30 %): they say less."""


def fit_steady(
    done: FloatArray, seen: FloatArray, measured_us: FloatArray, folds: IntArray, rounds: IntArray,
    calls: Calls | None = None,
) -> PhaseModel:  # fmt: skip
    """A phase's model from times of which each round's common deviation is taken out."""
    model = fit_phase(done, seen, measured_us, folds, calls)
    if len(np.unique(rounds)) == 1:
        return model
    for _ in range(TURNS - 1):
        tables_us = model.table_us(done, seen)
        predicted_us = tables_us if calls is None else model.start_us + calls.sums(tables_us)
        shift = round_shifts(np.log(measured_us / predicted_us), measured_us, rounds)
        model = fit_phase(done, seen, measured_us / np.exp(shift), folds, calls)
    return model


def round_shifts(log_error: FloatArray, measured_us: FloatArray, rounds: IntArray) -> FloatArray:
    """For every sample, ln of how much slower its round was; zero on the whole.

    A round of few or short calls is believed less: one more call that is not off counts with it.
    """
    weight = measured_us / (measured_us + STEADY_US)
    _, of_round = np.unique(rounds, return_inverse=True)
    shift = np.bincount(of_round, weight * log_error) / (np.bincount(of_round, weight) + 1)
    every = shift[of_round]
    return np.asarray(every - every.mean())


FEWEST_CALLS = 24
"""With fewer samples the rates alone are fitted, without a learned factor."""
_CENTRES = 400
_SWEEPS = 400
_WIDTHS, _RIDGES = (0.7, 1.0, 1.5, 2.2), (1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True, slots=True)
class Calls:
    """Which tables one call looks up: ``first[i]`` to before ``first[i + 1]`` of all tables in order."""

    first: IntArray
    tables: int

    @classmethod
    def of(cls, tables_each: Sequence[int]) -> Calls:
        """Tables per call."""
        ends = np.cumsum(tables_each)
        return cls(np.asarray(ends - tables_each, dtype=np.int64), int(ends[-1]))

    def sums(self, of_tables: FloatArray) -> FloatArray:
        """Over the tables of each call."""
        return np.asarray(np.add.reduceat(of_tables, self.first, axis=0))

    def spread(self, of_calls: np.typing.NDArray[Any]) -> np.typing.NDArray[Any]:
        """A call's value for each of its tables."""
        return np.asarray(np.repeat(of_calls, np.diff(self.first, append=self.tables), axis=0))


def fit_phase(
    done: FloatArray, seen: FloatArray, measured_us: FloatArray, folds: IntArray, calls: Calls | None = None
) -> PhaseModel:
    """Rates, and a learned factor chosen by the error on calls of other folds.

    ``done`` and ``seen`` are of tables, times and folds of ``calls``; without these each table
    has a call of its own, whose start is part of its work.
    """
    joined = Calls.of([1] * len(done)) if calls is None else calls
    own = joined.sums(done)
    start_us, rates = 0.0, non_negative_rates(own, measured_us)
    if calls is not None:
        with_start = non_negative_rates(np.column_stack([np.ones(len(own)), own]), measured_us)
        start_us, rates = float(with_start[0]), with_start[1:]
    base = done @ rates
    whole = start_us + joined.sums(base)
    log_error = np.log(measured_us / whole)
    if len(measured_us) < FEWEST_CALLS:
        return PhaseModel(rates, None, float(np.std(log_error)), start_us)
    mean, scale = seen.mean(axis=0), seen.std(axis=0)
    scale = np.where(scale > 1e-6, scale, 1.0)  # a feature that never changed says nothing
    learning = _Learning((seen - mean) / scale, base / joined.spread(whole), joined)
    width, ridge, left = learning.choose(log_error, folds)
    centres, weights = learning.fit(log_error, width, ridge)
    return PhaseModel(rates, Residual(mean, scale, centres, weights, width), left, start_us)


def non_negative_rates(done: FloatArray, measured: FloatArray) -> FloatArray:
    """Rates ≥ 0 that make the relative errors small, by coordinate descent."""
    a = done / measured[:, None]
    done_at_all = a.max(axis=0) > 0
    size = np.where(done_at_all, np.sqrt((a**2).mean(axis=0)), 1.0)
    a = a / size
    gram, right = a.T @ a, a.sum(axis=0)
    rates = np.where(done_at_all, 1.0 / a.shape[1], 0.0)
    for _ in range(_SWEEPS):
        for j in range(len(rates)):
            if done_at_all[j]:
                rates[j] = max(0.0, rates[j] + (right[j] - gram[j] @ rates) / gram[j, j])
    return np.asarray(rates / size)


@dataclass(frozen=True, slots=True)
class _Learning:
    """Tables as the learned factor sees them: features, and their share of their call's time.

    ln of a call's factor is the mean over its tables, weighted by these shares: to first order the
    factor that multiplies each table's own time.
    """

    x: FloatArray
    share: FloatArray
    calls: Calls

    def choose(self, log_error: FloatArray, folds: IntArray) -> tuple[float, float, float]:
        """The width and ridge with the smallest error on folds left out, and that error."""
        best = (np.inf, _WIDTHS[0], _RIDGES[0])
        for width in _WIDTHS:
            left = {ridge: np.zeros(len(folds)) for ridge in _RIDGES}
            for fold in np.unique(folds):
                inside, outside = folds != fold, folds == fold
                centres = _spread_out(self.x[self.calls.spread(inside)], _CENTRES)
                basis, inner = self._basis(centres, width), radial_basis(centres, centres, width)
                for ridge in _RIDGES:
                    weights = _solve(basis[inside], inner, log_error[inside], ridge)
                    left[ridge][outside] = log_error[outside] - basis[outside] @ weights
            for ridge, error in left.items():
                best = min(best, (float(np.mean(np.abs(error))), width, ridge))
        return best[1], best[2], best[0] * 1.25  # mean |error| to a standard deviation, for a normal

    def fit(self, log_error: FloatArray, width: float, ridge: float) -> tuple[FloatArray, FloatArray]:
        """Centres and weights from all calls."""
        centres = _spread_out(self.x, _CENTRES)
        inner = radial_basis(centres, centres, width)
        return centres, _solve(self._basis(centres, width), inner, log_error, ridge)

    def _basis(self, centres: FloatArray, width: float) -> FloatArray:
        return self.calls.sums(radial_basis(self.x, centres, width) * self.share[:, None])


def _solve(basis: FloatArray, inner: FloatArray, target: FloatArray, ridge: float) -> FloatArray:
    """Kernel ridge regression on a subset of centres."""
    system = basis.T @ basis + ridge * inner + 1e-8 * np.eye(len(inner))
    return np.asarray(np.linalg.solve(system, basis.T @ target))


def _spread_out(x: FloatArray, count: int) -> FloatArray:
    """Points far from each other (farthest first), so that the edges of the data are covered."""
    if len(x) <= count:
        return x
    chosen = [0]
    distance = ((x - x[0]) ** 2).sum(1)
    while len(chosen) < count:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((x - x[chosen[-1]]) ** 2).sum(1))
    return x[chosen]
