"""Tables in host memory and weighted lookups."""

from collections import OrderedDict

import numpy as np
import pytest

from stepsight.errors import InputError
from stepsight.kernels.embedding.traffic import missing_rows
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.sharding.choice import choose
from stepsight.tables.indices.distributions import IndexDistribution, draw_indices
from stepsight.tables.lookup import TableLookup
from stepsight.workload.files import parse_workload

PLATFORM = "2xA100-SXM4-40G"


def workload(**table: object):
    return parse_workload(
        {
            "kind": "dlrm", "batch": 4096, "dense": {"features": 16, "bottom": [64], "top": [64, 1]},
            "tables": [{"rows": 2_000_000, "dim": 64, "count": 4, "pooling": 20.0, **table}],
            "parallel": {"ranks": 2},
        },
        "x",
    )  # fmt: skip


def step_us(**table: object) -> float:
    return predict(workload(**table), load_platform(PLATFORM)).step_time_us


def test_rows_across_the_bus_cost_more_and_a_cache_helps():
    device, cached, host = (step_us(placement=p) for p in ("device", "uvm_caching", "uvm"))
    assert device < cached < host


def test_a_larger_cache_never_takes_longer():
    times = [step_us(placement="uvm_caching", cache_share=share) for share in (0.05, 0.2, 0.5, 1.0)]
    assert times == sorted(times, reverse=True)


def test_popular_rows_stay_in_the_cache():
    skewed, uniform = (
        step_us(placement="uvm_caching", indices=indices) for indices in ({"zipf": 1.2}, "uniform")
    )
    assert skewed < uniform


def test_the_device_holds_only_the_cache():
    def tables(**table: object) -> float:
        return max(rank.tables for rank in workload(**table).memory().ranks)

    assert tables(placement="uvm") == 0
    assert tables(placement="uvm_caching", cache_share=0.25) == pytest.approx(tables() / 4)


def test_weights_are_read_with_the_indices():
    assert step_us(weighted=True) >= step_us()


def test_what_has_no_effect_is_refused():
    with pytest.raises(InputError, match="cache_share: has no effect"):
        workload(cache_share=0.5)


def test_plans_of_tables_in_host_memory_are_priced_with_the_bus():
    found, platform = workload(placement="uvm"), load_platform(PLATFORM)
    choice = choose(found, platform, plans=50)
    assert choice.winner.step_us == pytest.approx(
        predict(found.with_plan(choice.winner.plan), platform).step_time_us, rel=1e-3
    )


@pytest.mark.parametrize("skew", [0.0, 0.8, 1.05])
def test_rows_that_a_cache_misses_are_those_that_an_lru_cache_drops(skew):
    """FBGEMM's cache keeps the rows used last: the same draws go through one, long after it is full."""
    rows, kept, batch, batches = 4000, 800, 500, 80
    indices = IndexDistribution.zipf(skew)
    table = TableLookup(rows, 16, batch, 1.0, indices, placement="uvm_caching", cache_share=kept / rows)
    cache: OrderedDict[int, None] = OrderedDict()
    missed = 0
    drawn = draw_indices(indices, rows, batch * 2 * batches, np.random.default_rng(0)).reshape(-1, batch)
    for i, rows_of_batch in enumerate(drawn.tolist()):
        missed += len(set(rows_of_batch) - set(cache)) if i >= batches else 0
        for row in rows_of_batch:
            cache[row] = None
            cache.move_to_end(row)
        while len(cache) > kept:
            cache.popitem(last=False)
    assert missing_rows(table) == pytest.approx(missed / batches, rel=0.05)


def test_a_cache_never_fetches_more_rows_than_a_batch_asks_for():
    few = {"rows": 1000, "count": 8}
    device, cached, host = (step_us(placement=p, **few) for p in ("device", "uvm_caching", "uvm"))
    bookkeeping_us = 500
    assert cached < device + bookkeeping_us
    assert cached < host + bookkeeping_us
    table = TableLookup(1000, 64, 4096, 20.0, IndexDistribution.uniform(), placement="uvm_caching",
                        cache_share=0.01)  # fmt: skip
    assert missing_rows(table) <= 1000


def test_a_cache_for_all_rows_misses_none():
    table = TableLookup(1000, 64, 64, 2.0, IndexDistribution.uniform(), placement="uvm_caching")
    assert missing_rows(table) == 0


def test_nothing_crosses_the_bus_faster_than_the_bus():
    found, platform = workload(placement="uvm"), load_platform(PLATFORM)
    unique = IndexDistribution.uniform().stats(2_000_000, 4096 * 20).unique_rows
    least_us = 2 * unique * 64 * 4 / (platform.spec.gpu.pcie_gbps * 1e3)
    assert predict(found, platform).step_time_us > least_us
