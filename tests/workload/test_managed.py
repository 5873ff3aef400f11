"""Tables in host memory and weighted lookups."""

from collections import OrderedDict

import numpy as np
import pytest

from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.sharding.choice import choose
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.indices.sampling import draw_indices
from stepsight.tables.plan import Shard
from stepsight.tables.table import Table
from stepsight.workload.dlrm.managed import transfers
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
    return predict(workload(**table), load_platform(PLATFORM)).step_us


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


def test_what_has_no_effect_or_cannot_be_done_is_refused():
    with pytest.raises(InputError, match="cache_share: has no effect"):
        workload(cache_share=0.5)
    with pytest.raises(InputError, match="host memory"):
        choose(workload(placement="uvm"), load_platform(PLATFORM))


@pytest.mark.parametrize("skew", [0.0, 0.8, 1.05])
def test_rows_that_a_cache_misses_are_those_that_an_lru_cache_drops(skew):
    """FBGEMM's cache keeps the rows used last: the same draws go through one, long after it is full."""
    rows, kept, draws = 4000, 800, 60_000
    indices = IndexDistribution.zipf(skew)
    table = Table("t", rows, 16, 1.0, indices, placement="uvm_caching", cache_share=kept / rows)
    cache: OrderedDict[int, None] = OrderedDict()
    missed = 0
    for i, row in enumerate(draw_indices(indices, rows, draws, np.random.default_rng(0)).tolist()):
        missed += i >= draws // 3 and row not in cache
        cache[row] = None
        cache.move_to_end(row)
        if len(cache) > kept:
            cache.popitem(last=False)
    before, _ = transfers({"t": table}, [Shard("t", 0, (0, 16), (0, rows))], 1000, "sgd")
    fetched = sum(k.dim("bytes") for k in before if k.operator == "cache fill") / (16 * 4)
    assert fetched == pytest.approx(1000 * missed / (draws - draws // 3), rel=0.04)


def test_nothing_crosses_the_bus_faster_than_the_bus():
    found, platform = workload(placement="uvm"), load_platform(PLATFORM)
    kernels = [k for op in found.job().programs[0].ops for k in op.kernels if k.operator.startswith("uvm")]
    least_us = sum(k.dim("bytes") for k in kernels) / (platform.spec.gpu.pcie_gbps * 1e3)
    assert predict(found, platform).step_us > least_us
