"""Measure the tables of one workload on this machine, so that plans are priced by what they take here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepsight.calibrate.bench.lookup_bench import (
    ALONE,
    PHASES,
    ROUND_TABLES,
    TableTimes,
    beside_others,
    measure,
)
from stepsight.errors import InputError
from stepsight.estimate import MAD_TO_SD, FloatArray
from stepsight.run.pace import probe_rank
from stepsight.run.ranks import Ranks
from stepsight.sharding.pricing.measured_tables import MeasuredTables
from stepsight.sharding.pricing.steps import PlanPricer
from stepsight.tables.lookup import TableLookup

PASSES, TURNS = 2, 10
"""Each pass makes the tables anew and mixes them differently: neighbours are part of a table's time."""


def check_measurable(pricer: PlanPricer) -> None:
    """Only lookups that run table by table, as `stepsight run` has them, can be measured one by one."""
    if pricer.fused:
        raise InputError(
            pricer.platform.name,
            "looks all tables of a rank up in one fused kernel, which is not measured here",
            "name the folder that `stepsight calibrate` wrote on this machine",
        )


def measure_tables(group: Ranks, pricer: PlanPricer, seed: int = 0) -> MeasuredTables:
    """Look every table of the pricer's workload up on the ranks of ``group``, all of them at once."""
    check_measurable(pricer)
    count = len(pricer.costs.tables)
    parts = [part for i in range(count) for part in pricer.costs.halves(i)]
    lookups = [pricer.costs.lookup(part) for part in parts]
    probes = [_probe_us(group)]
    times, apart = _turns(group, lookups, seed)
    probes.append(_probe_us(group))
    calibrated = pricer.platform.calibration.pace_us
    pace = float(np.mean(probes)) / calibrated if calibrated else None
    together = np.array([[np.median(t.forward), np.median(t.backward)] for t in times])
    ratio = np.log(together / pricer.costs.part_times(parts)).reshape(count, 3, 2)
    if group.ranks == 1:
        return MeasuredTables(ratio, pace=pace)
    alone = np.array([[np.median(t.forward_alone), np.median(t.backward_alone)] for t in times])
    forward, backward = (beside_others(together[:, p].tolist(), alone[:, p].tolist()) for p in (0, 1))
    return MeasuredTables(ratio, (forward, backward), _jitter(apart, group.ranks), pace)


def _probe_us(group: Ranks) -> float:
    """The machine's pace, on the slowest rank."""
    return float(max(group.call(probe_rank)))


def _turns(
    group: Ranks, lookups: Sequence[TableLookup], seed: int
) -> tuple[list[TableTimes], list[FloatArray]]:
    """The times of every lookup over ranks, turns and passes; and for every round of tables, ranks × turns,
    how far each rank's whole turn was from the mean of all ranks (of ln)."""
    rng = np.random.default_rng(seed)
    times = [TableTimes([], [], [], []) for _ in lookups]
    apart: list[FloatArray] = []
    for number in range(PASSES):
        order = rng.permutation(len(lookups))
        for at in range(0, len(lookups), ROUND_TABLES):
            members = order[at : at + ROUND_TABLES].tolist()
            asked = [lookups[i] for i in members], TURNS, seed + number, group.ranks > 1
            answers = group.call(measure, *asked)
            turns = np.log([np.sum([np.add(t.forward, t.backward) for t in a], axis=0) for a in answers])
            apart.append(turns - turns.mean(axis=0))
            for answer in answers:
                for i, seen in zip(members, answer, strict=True):
                    for phase in (*PHASES, *(p + ALONE for p in PHASES)):
                        times[i].of(phase).extend(seen.of(phase))
    return times, apart


def _jitter(apart: Sequence[FloatArray], ranks: int) -> float:
    """How much one rank's turns vary by themselves: what all ranks see together is not counted, nor what a
    rank always takes longer; single turns that were far off count little."""
    alone = np.concatenate([(a - np.median(a, axis=1, keepdims=True)).ravel() for a in apart])
    return float(MAD_TO_SD * np.median(np.abs(alone)) * np.sqrt(ranks / (ranks - 1)))
