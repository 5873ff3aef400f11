"""On a machine that obeys a law, the fitted models find it, also for shapes that were not measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepsight.calibrate.draws import kernels_of, random_tables, rehearsal_documents, table_lookup
from stepsight.calibrate.fit import fit_contention, fit_samples, lookup_slowdowns
from stepsight.errors import StepsightError
from stepsight.platform.load import load_platform
from stepsight.program.job import Kernel
from stepsight.score import gmae
from stepsight.tables.lookup import Lookup
from stepsight.workload.files import parse_workload

from .synthetic import collective_us, kernel_us, lookup_us, samples


def test_unseen_kernels_are_timed_by_the_law(calibrated: Path) -> None:
    workloads = [parse_workload(d, d["name"]) for d in rehearsal_documents(2, 7, 7)[4:7]]
    kernels = kernels_of(workloads, "cpu")
    predicted = load_platform(calibrated).kernels.estimate(kernels).time_us
    assert gmae(predicted, [kernel_us(k) for k in kernels]) < 0.02


def test_unseen_lookups_follow_the_indices(calibrated: Path) -> None:
    records = random_tables(60, 9)
    kernels = [Kernel("embedding", lookup=Lookup((table_lookup(r),), fused=False)) for r in records]
    predicted = load_platform(calibrated).kernels.estimate(kernels).time_us
    assert gmae(predicted, [lookup_us(r, "forward") for r in records]) < 0.08


def test_collectives_are_read_off_their_curves(calibrated: Path) -> None:
    sizes = np.array([3e3, 3e5, 3e6])
    models = load_platform(calibrated).collectives
    for kind in ("all_reduce", "all_to_all"):
        predicted = models.estimate(kind, sizes, (0, 1)).time_us
        assert predicted == pytest.approx([collective_us(kind, s) for s in sizes], rel=0.1)


def test_contention_is_what_overlap_costs() -> None:
    found = fit_contention(samples(40, 8)["contention"])
    assert found.comm_under_compute > 1
    assert found.compute_under_comm > 1


def test_what_sharing_the_memory_costs_is_seen_on_tables_measured_both_ways() -> None:
    records = random_tables(3, 1)

    def row(record: dict[str, object], phase: str, time_us: float) -> dict[str, object]:
        return {**record, "phase": phase, "times_us": [[time_us] * 3]}

    rows = [row(r, "backward", 130.0) for r in records] + [row(r, "forward", 90.0) for r in records]
    rows += [row(r, "backward alone", 100.0) for r in records[:2]]
    rows += [row(r, "forward alone", 100.0) for r in records[:2]]
    assert lookup_slowdowns(rows) == {"forward": 1.0, "backward": 1.3}
    assert lookup_slowdowns(rows[:6]) == {"forward": 1.0, "backward": 1.0}


def test_without_contention_nothing_slows_down() -> None:
    row = {"comm_alone_us": 100.0, "compute_alone_us": 300.0, "comm_us": 100.0, "compute_us": 300.0}
    found = fit_contention([row] * 3)
    assert (found.compute_under_comm, found.comm_under_compute) == (1.0, 1.0)


def test_a_calibration_that_ended_too_early_says_so() -> None:
    with pytest.raises(StepsightError, match="--resume"):
        fit_samples({"kernels": []})
