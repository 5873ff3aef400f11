from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from stepsight.calibrate.bench.lookup_bench import check_measurable, measure_tables
from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.run.ranks import Ranks
from stepsight.sharding.pricing.steps import PlanPricer
from stepsight.sharding.with_tables import task_workload
from stepsight.tables.sharders import SHARDERS
from stepsight.tables.tasks import Scale, random_task

TINY = Scale(dims=(16, 32), batches=(64,), least_rows=1000, most_rows=2000, most_pooling=30.0,
             tables_per_rank=(2, 2))  # fmt: skip


@pytest.fixture(scope="module")
def pricer(calibrated: Path) -> PlanPricer:
    """Four tiny tables on a machine that obeys a simple law, not this one."""
    task = random_task(2, 0, TINY)
    workload = task_workload(task, features=8, bottom=(8, 4), top=(8, 1))
    return PlanPricer(workload, load_platform(calibrated))


def test_plans_are_priced_by_what_the_tables_take_here(pricer: PlanPricer) -> None:
    with Ranks(2) as group:
        seen = measure_tables(group, pricer)
    assert seen.log_ratio.shape == (4, 3, 2)
    assert np.isfinite(seen.log_ratio).all()
    assert min(seen.beside_others) >= 1.0
    here = PlanPricer(pricer.workload, pricer.platform, measured=seen)
    parts = [part for i in range(4) for part in pricer.costs.halves(i)]
    measured = pricer.costs.part_times(parts) * np.exp(seen.log_ratio.reshape(-1, 2))
    np.testing.assert_allclose(here.costs.part_times(parts), measured)
    plan = SHARDERS["round_robin"](pricer.costs.tables, 2)
    assert here.step_us([plan]) != pytest.approx(pricer.step_us([plan]))


def test_fused_lookups_are_refused_with_the_platform_to_name() -> None:
    task = random_task(2, 0, TINY)
    with pytest.raises(InputError, match="stepsight calibrate"):
        check_measurable(PlanPricer(task_workload(task), load_platform("2xA100-SXM4-40G")))
