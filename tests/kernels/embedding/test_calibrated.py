"""A platform that knows several operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepsight.errors import InputError, StepsightError
from stepsight.kernels.embedding.cpu.measured import CalibratedLookups, MeasuredLookups
from stepsight.kernels.embedding.cpu.work import PhaseModel, work
from stepsight.kernels.models import KernelModels
from stepsight.platform.load import load_platform
from stepsight.program.job import Kernel
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import EMBEDDING_BAG, FBGEMM, Lookup, TableLookup

CACHES = (32e3, 1e6, 32e6)
TABLES = (
    TableLookup(1000, 16, 64, 4.0, IndexDistribution.uniform()),
    TableLookup(50_000, 64, 64, 2.0, IndexDistribution.zipf(1.05)),
)


def model(operator: str, us_per_table: float, start_us: float) -> MeasuredLookups:
    """This many µs for a table, whatever it does."""
    phases = {}
    for phase, name in (("forward", "forward"), ("backward", "backward sgd")):
        rates = np.zeros(work(TABLES, CACHES, phase, "sgd", operator).shape[1])
        rates[0] = us_per_table
        phases[name if operator == FBGEMM else phase] = PhaseModel(rates, None, 0.05, start_us)
    return MeasuredLookups(CACHES, phases, {}, operator)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model(EMBEDDING_BAG, 10.0, 0.0).save(tmp_path)
    return tmp_path


def kernel(operator: str, family: str = "embedding") -> Kernel:
    return Kernel(family, lookup=Lookup(TABLES, operator=operator))


def test_every_kernel_is_answered_by_the_operator_that_it_names(folder: Path) -> None:
    model(FBGEMM, 3.0, 100.0).save(folder)
    asked = [kernel(FBGEMM), kernel(""), kernel(EMBEDDING_BAG), kernel(FBGEMM, "embedding_backward")]
    answer = CalibratedLookups.load(folder).estimate(asked)
    np.testing.assert_allclose(answer.time_us, [106.0, 20.0, 20.0, 106.0])


def test_an_operator_that_was_not_measured_is_an_error_with_the_way_to_measure_it(folder: Path) -> None:
    with pytest.raises(InputError, match=r"only with embedding_bag.*--stack torchrec"):
        CalibratedLookups.load(folder).estimate([kernel(FBGEMM)])


def test_the_only_operator_answers_for_lookups_that_name_none(tmp_path: Path) -> None:
    model(FBGEMM, 3.0, 100.0).save(tmp_path)
    assert CalibratedLookups.load(tmp_path).estimate([kernel("")]).time_us[0] == 106.0


def test_kernels_without_tables_are_refused(folder: Path) -> None:
    with pytest.raises(StepsightError, match="not an embedding kernel"):
        CalibratedLookups.load(folder).estimate([Kernel("embedding")])


def test_a_platform_folder_brings_its_operators(folder: Path) -> None:
    spec = load_platform("8xA100-SXM4-40G").spec.gpu
    assert KernelModels.load(folder, spec).estimate([kernel("")]).time_us[0] == 20.0
