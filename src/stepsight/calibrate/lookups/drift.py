"""A machine's slow and fast minutes, told from what tables cost.

Memory is shared with strangers: within minutes the same update takes 20 % more or less (an AMD EPYC
under KVM; forwards 5 %), and all tables measured then shift together. Tables are measured in rounds
of different ones, so what a whole round is off by is the minute, not the tables.
"""

from __future__ import annotations

import numpy as np

from stepsight.calibrate.lookups.phases import Calls, fit_phase
from stepsight.estimate import FloatArray, IntArray
from stepsight.kernels.embedding.cpu.time import PhaseModel

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
