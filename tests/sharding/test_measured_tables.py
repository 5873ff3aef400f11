import numpy as np
import pytest

from stepsight.hardware.spec import ContentionSpec
from stepsight.sharding.pricing.loads import PartCosts, TablePart
from stepsight.sharding.pricing.lookups import SeparateLookups
from stepsight.sharding.pricing.measured_tables import MeasuredTables
from stepsight.sharding.pricing.steps import PlanPricer

WHOLE, HALF_COLUMNS, HALF_ROWS = (1.2, 1.4), (1.1, 1.2), (0.9, 1.0)


@pytest.fixture
def seen() -> MeasuredTables:
    """One table: updates of the whole take 1.4 times what the model says."""
    return MeasuredTables(np.log([[WHOLE, HALF_COLUMNS, HALF_ROWS]]), (1.05, 1.2))


def test_parts_that_were_measured_take_what_was_measured(seen):
    np.testing.assert_allclose(seen.factors(0, 1.0, 1.0), WHOLE)
    np.testing.assert_allclose(seen.factors(0, 0.5, 1.0), HALF_COLUMNS)
    np.testing.assert_allclose(seen.factors(0, 1.0, 0.5), HALF_ROWS)


def test_between_a_whole_and_a_half_lies_what_is_between(seen):
    between = seen.factors(0, 0.75, 1.0)
    assert (between < WHOLE).all()
    assert (between > HALF_COLUMNS).all()


def test_smaller_parts_are_like_halves(seen):
    np.testing.assert_allclose(seen.factors(0, 1 / 8, 1.0), HALF_COLUMNS)


def test_costs_of_parts_follow_the_measurement(pricer, some_tables):
    model = SeparateLookups(pricer.platform.kernels.estimate)
    plain = PartCosts([some_tables], 512, 2, model)
    ratio = np.random.default_rng(0).normal(0, 0.3, (len(some_tables), 3, 2))
    scaled = PartCosts([some_tables], 512, 2, model, measured=MeasuredTables(ratio))
    parts = [part for i in range(len(some_tables)) for part in plain.halves(i)]
    found = np.log(scaled.part_times(parts) / plain.part_times(parts))
    np.testing.assert_allclose(found, ratio.reshape(-1, 2), atol=1e-9)


def test_a_table_is_seen_whole_and_in_halves(pricer):
    whole, narrow, short = pricer.costs.halves(0)
    table = pricer.costs.tables[0]
    assert whole == TablePart(0, table.dim, table.rows)
    assert (narrow.width, narrow.height) == (-(-table.dim // 2), table.rows)
    assert (short.width, short.height) == (table.dim, -(-table.rows // 2))


def test_what_ranks_cost_each_other_is_taken_from_the_measurement(seen):
    stated = ContentionSpec(1.1, 1.3, lookups_forward=1.0, lookups_backward=1.0)
    here = seen.contention(stated)
    assert (here.lookups_forward, here.lookups_backward) == (1.05, 1.2)
    assert (here.compute_under_comm, here.comm_under_compute) == (1.1, 1.3)


def test_putting_cut_tables_together_costs_the_same_whatever_lookups_take(pricer):
    """Slower lookups must not make it look free: it is seen against a simulation without them."""
    count = len(pricer.costs.tables)
    twice = MeasuredTables(np.full((count, 3, 2), np.log(2.0)))
    slower = PlanPricer(pricer.workload, pricer.platform, measured=twice)
    assert slower._joining_us == pricer._joining_us
    assert max(slower._joining_us) > 0
