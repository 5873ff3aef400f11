"""A workload names the operator that its CPU looks up with; the platform must have been measured with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from stepsight.errors import InputError
from stepsight.kernels.embedding.cpu.measured import MeasuredLookups
from stepsight.kernels.embedding.cpu.work import PhaseModel, work
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.sharding.steps import PlanPricer
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import FBGEMM, TableLookup
from stepsight.tables.sharders import SHARDERS
from stepsight.workload.dlrm.build import DlrmWorkload, build
from stepsight.workload.files import load_workload

EXAMPLE = Path(__file__).parents[2] / "examples" / "dlrm.toml"
CACHES = (32e3, 1e6, 32e6)
START_US = 30_000.0


@pytest.fixture
def with_fbgemm(calibrated: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "platform"
    shutil.copytree(calibrated, folder)
    table, phases = TableLookup(1000, 16, 64, 4.0, IndexDistribution.uniform()), {}
    for phase, name in (("forward", "forward"), ("backward", "backward sgd")):
        kinds = work([table], CACHES, phase, "sgd", FBGEMM).shape[1]
        phases[name] = PhaseModel(np.full(kinds, 1e-3), None, 0.05, START_US)
    MeasuredLookups(CACHES, phases, {}, FBGEMM).save(folder)
    return folder


def workload(*overrides: str) -> DlrmWorkload:
    found = load_workload(EXAMPLE, ("parallel.ranks=2", "batch=256", *overrides))
    assert isinstance(found, DlrmWorkload)
    return found


def test_one_kernel_looks_all_tables_up() -> None:
    marks = build(workload("parallel.cpu_lookup=fbgemm").config, "cpu")[1]
    op = workload("parallel.cpu_lookup=fbgemm").job("cpu").programs[0].ops[marks.lookup_forward]
    assert [kernel.family for kernel in op.kernels] == ["embedding"]
    lookup = op.kernels[0].lookup
    assert lookup is not None and lookup.fused and lookup.operator == FBGEMM


def test_the_named_operator_is_predicted(calibrated: Path, with_fbgemm: Path) -> None:
    fbgemm = workload("parallel.cpu_lookup=fbgemm")
    slow = predict(fbgemm, load_platform(with_fbgemm))
    assert slow.step_time_us > predict(workload(), load_platform(with_fbgemm)).step_time_us
    assert slow.step_time_us > 2 * START_US
    with pytest.raises(InputError, match=r"not calibrated for lookups with fbgemm"):
        predict(fbgemm, load_platform(calibrated))


def test_a_search_prices_the_named_operator_as_predict_does(with_fbgemm: Path) -> None:
    pricer = PlanPricer(workload("parallel.cpu_lookup=fbgemm"), load_platform(with_fbgemm))
    for sharder in list(SHARDERS.values())[:3]:
        plan = sharder(pricer.costs.tables, 2)
        assert pricer.step_us([plan])[0, 0] == pytest.approx(pricer.simulated_us(plan), rel=0.01)
