"""The lookup model of a GPU: what must always hold, and where it stands against measurements."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.fit.embedding.gpu import predict
from lab.fit.embedding.points import DEFAULT, MLPERF, POINTS, measured_kernels
from stepsight.errors import StepsightError
from stepsight.estimate import Source
from stepsight.hardware.gpus import load_gpu
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.embedding import traffic
from stepsight.kernels.embedding.gpu import GpuTimes
from stepsight.kernels.embedding.model import EmbeddingModel
from stepsight.program.job import Kernel
from stepsight.score import gmae
from stepsight.tables.bags import longest_over_mean
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import Lookup, TableLookup

V100 = GpuSpec("V100", "nvidia", "volta", 80, 1530, 32, 900, 6, 2155, {"fp32": 15.7}, 16)
FAMILIES = ["embedding", "embedding_backward"]
UNIFORM = IndexDistribution.uniform()

tables = st.builds(
    TableLookup,
    rows=st.integers(10, 10_000_000),
    dim=st.sampled_from([16, 32, 64, 128, 256]),
    batch=st.integers(1, 16384),
    pooling=st.floats(0.5, 100),
    indices=st.one_of(
        st.just(IndexDistribution.uniform()),
        st.floats(0.2, 1.4).map(IndexDistribution.zipf),
        st.builds(IndexDistribution.hot, st.floats(1e-4, 0.5), st.floats(0, 1)),
    ),
)


def time_us(family: str, *parts: TableLookup, gpu: GpuSpec = V100, **lookup: object) -> float:
    kernel = Kernel(family, lookup=Lookup(tuple(parts), **lookup))
    return float(EmbeddingModel.for_gpu(gpu).estimate([kernel]).time_us[0])


@pytest.mark.parametrize("family", FAMILIES)
@given(parts=st.lists(tables, min_size=2, max_size=6), order=st.randoms())
@settings(max_examples=40, deadline=None)
def test_the_order_of_tables_changes_nothing(family: str, parts: list[TableLookup], order: object) -> None:
    shuffled = list(parts)
    order.shuffle(shuffled)
    assert time_us(family, *shuffled) == pytest.approx(time_us(family, *parts))


@given(table=tables, exponents=st.tuples(st.floats(0, 1.4), st.floats(0, 1.4)))
@settings(max_examples=60, deadline=None)
def test_more_skew_is_never_slower_to_look_up(table: TableLookup, exponents: tuple[float, float]) -> None:
    less, more = (replace(table, indices=IndexDistribution.zipf(e)) for e in sorted(exponents))
    assert time_us("embedding", more) <= time_us("embedding", less) * 1.001


@pytest.mark.parametrize("family", FAMILIES)
@given(table=tables, factor=st.floats(1, 4))
@settings(max_examples=40, deadline=None)
def test_more_lookups_a_bag_are_never_faster(family: str, table: TableLookup, factor: float) -> None:
    assert time_us(family, replace(table, pooling=table.pooling * factor)) >= time_us(family, table) * 0.999


@given(table=tables)
@settings(max_examples=40, deadline=None)
def test_splitting_a_table_by_columns_preserves_the_bytes_of_rows_and_outputs(table: TableLookup) -> None:
    cache = traffic.CacheView(1e6, 32, 5120)  # what an SM's own cache serves is no traffic
    whole = traffic.forward_columns([table], cache, together=1)[0, traffic.L2]
    half = replace(table, dim=table.dim // 2)
    halves = traffic.forward_columns([half] * 2, cache, together=2)[:, traffic.L2].sum()
    again = table.lookups * 8 + table.batch * 8  # the second half reads indices and offsets again
    assert halves - again == pytest.approx(whole)


@given(parts=st.lists(tables, min_size=1, max_size=6), extra=tables)
@settings(max_examples=40, deadline=None)
def test_one_table_more_is_never_faster(parts: list[TableLookup], extra: TableLookup) -> None:
    model = EmbeddingModel.for_gpu(V100)
    costs = model.table_costs([*parts, extra], together=4)
    assert model.forward_us(costs.forward.sum(0)) >= model.forward_us(costs.forward[:-1].sum(0))
    assert model.backward_us(costs.backward.sum(0)) >= model.backward_us(costs.backward[:-1].sum(0))


def test_any_subset_of_tables_is_a_sum_of_their_costs() -> None:
    model = EmbeddingModel.for_gpu(V100)
    parts = [TableLookup(10**k, 64, 4096, 10, IndexDistribution.zipf(1.05)) for k in range(3, 8)]
    costs = model.table_costs(parts, together=2)
    assignment = np.eye(5)[[0, 1]].sum(0)[None, :]
    expected = model.estimate([Kernel("embedding", lookup=Lookup(tuple(parts[:2])))]).time_us
    np.testing.assert_allclose(model.forward_us(assignment @ costs.forward), expected)


def test_a_rank_without_tables_takes_no_time() -> None:
    model = EmbeddingModel.for_gpu(V100)
    nothing = np.zeros((3, traffic.COLUMNS))
    assert not model.forward_us(nothing).any()
    assert not model.backward_us(nothing).any()


def test_empty_bags_are_looked_up_all_the_same() -> None:
    empty = TableLookup(1_000, 64, 65536, 0.0, IndexDistribution.uniform())
    assert time_us("embedding", empty) > 10
    assert time_us("embedding_backward", empty) == 0


def test_tables_one_by_one_cost_more_than_fused() -> None:
    parts = [TableLookup(1_000, 32, 256, 4, IndexDistribution.uniform())] * 20
    assert time_us("embedding", *parts, fused=False) > 5 * time_us("embedding", *parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_rows_are_faster_where_memory_is_the_limit(family: str) -> None:
    table = TableLookup(10_000_000, 256, 16384, 50, IndexDistribution.uniform())
    assert time_us(family, replace(table, dtype="fp16")) < 0.8 * time_us(family, table)


def test_the_longest_bag_of_a_few_tables_is_waited_for() -> None:
    def few(*poolings: float) -> float:
        return time_us(
            "embedding", *(TableLookup(10**6, 16, 128, p, IndexDistribution.zipf(1.05)) for p in poolings)
        )

    assert few(100, 3, 1) > 2 * few(35, 35, 34)


def test_a_lookup_returns_single_precision_whatever_its_rows_are() -> None:
    table = TableLookup(1_000, 64, 4096, 1, IndexDistribution.uniform(), "fp16")
    cache = traffic.CacheView(1e6, 32, 5120)
    own, single = (
        traffic.forward_columns([table], cache, together=1, pooled_dtype=dtype)[0, traffic.DRAM]
        for dtype in ("", "fp32")
    )
    assert single - own == pytest.approx(4096 * 64 * 2)


def test_a_backward_sorts_by_as_many_bits_as_its_rows_need() -> None:
    model = EmbeddingModel.for_gpu(V100)
    times = GpuTimes(model.spec, model.coefficients)
    rows = (2**16, 2**16 + 1, 2**24)
    parts = [TableLookup(r, 16, 4096, 2, IndexDistribution.uniform()) for r in rows]
    two, three, still_three = times.arrange_us(model.table_costs(parts).backward)
    assert three > two + model.coefficients.pass_us
    assert still_three == pytest.approx(three)


def test_per_sample_weights_are_sorted_too() -> None:
    table = TableLookup(10**6, 16, 4096, 10, IndexDistribution.uniform())
    more = time_us("embedding_backward", replace(table, weighted=True)) - time_us("embedding_backward", table)
    assert more > 3 * EmbeddingModel.for_gpu(V100).coefficients.pass_us


def test_a_row_with_many_lookups_takes_a_kernel_of_its_own() -> None:
    even = TableLookup(10_000, 16, 128, 1, IndexDistribution.uniform())
    hot = replace(even, indices=IndexDistribution.hot(1e-4, 0.5))
    assert time_us("embedding_backward", hot) > time_us("embedding_backward", even) + 5


def test_state_of_the_optimizer_costs_by_its_size() -> None:
    table = TableLookup(10_000_000, 128, 32768, 5, IndexDistribution.uniform())
    times = [
        time_us("embedding_backward", table, optimizer=name)
        for name in ("sgd", "rowwise_adagrad", "adagrad", "adam")
    ]
    assert times == sorted(times)
    with pytest.raises(StepsightError, match="unknown optimizer"):
        time_us("embedding_backward", table, optimizer="lion")


def test_a_cpu_nobody_measured_gets_a_stated_default() -> None:
    cpu = replace(V100, architecture="cpu", sms=2, clock_mhz=2600, memory_gbps=20, l2_mb=32, l2_gbps=100)
    table = TableLookup(1_000, 64, 512, 10, IndexDistribution.uniform())
    answer = EmbeddingModel.for_gpu(cpu).estimate([Kernel("embedding", lookup=Lookup((table,)))])
    assert Source(int(answer.source[0])) == Source.DEFAULT
    assert 20 < answer.time_us[0] < 5_000


def test_a_kernel_without_tables_is_refused() -> None:
    with pytest.raises(StepsightError, match="not an embedding kernel"):
        EmbeddingModel.for_gpu(V100).estimate([Kernel("embedding")])


def test_a_chip_whose_streams_fall_short_of_its_data_sheet_looks_up_slower() -> None:
    table = TableLookup(10_000_000, 128, 16384, 50, IndexDistribution.uniform())
    p100, v100 = load_gpu("P100-PCIE-16G"), load_gpu("V100-SXM2-16G")
    slower = time_us("embedding", table, gpu=p100) / time_us("embedding", table, gpu=v100)
    assert slower > 1.1 * v100.memory_gbps / p100.memory_gbps


def scattered_us(**table: object) -> float:
    part = TableLookup(**{"rows": 1_000_000, "dim": 64, "batch": 2048, "pooling": 50.0, **table})
    return time_us("embedding_backward", part, update="scattered")


def test_updates_one_by_one_are_slower_where_rows_lie_far_apart() -> None:
    apart = scattered_us(indices=IndexDistribution.uniform())
    ordered = scattered_us(indices=IndexDistribution.uniform(ordered=True))
    assert ordered < 0.8 * apart
    near = {"rows": 20_000, "indices": IndexDistribution.uniform()}  # 5 MB
    assert scattered_us(**near) < 0.6 * apart


def test_ordered_bags_of_one_lookup_are_like_any_others() -> None:
    one = TableLookup(1_000_000, 64, 2048, 1, IndexDistribution.uniform())
    assert traffic.window(replace(one, indices=IndexDistribution.uniform(ordered=True))) == 1.0
    assert traffic.window(one) == 1.0


def test_updates_of_one_popular_row_wait_for_each_other() -> None:
    hot, even = (
        {"rows": 100, "indices": i} for i in (IndexDistribution.zipf(3), IndexDistribution.uniform())
    )
    assert scattered_us(**hot) > scattered_us(**even) + 100


def test_rows_that_an_sm_holds_itself_do_not_cross_the_l2() -> None:
    few, many = (
        EmbeddingModel.for_gpu(V100).table_costs(
            [TableLookup(rows, 32, 8192, 20, IndexDistribution.uniform())]
        ).forward[0, traffic.L2]
        for rows in (100, 10_000)
    )  # fmt: skip
    assert few < 0.5 * many


@pytest.mark.data
def test_v100_points_and_dlrm_lists_are_within_their_bars(measured_data: Path) -> None:
    pytest.importorskip("pyarrow")
    points = measured_kernels(measured_data)
    predicted, measured = predict(points), np.array([p.time_us for p in points])
    mine = np.array([p.source == POINTS for p in points])
    lists = np.array([p.source in (DEFAULT, MLPERF) for p in points])
    assert mine.sum() == 20 and gmae(predicted[mine], measured[mine]) < 0.10
    assert lists.sum() == 4 and gmae(predicted[lists], measured[lists]) < 0.08


def with_reuse(reuse: float, indices: IndexDistribution) -> TableLookup:
    return TableLookup(round(65_536 * 20 / reuse), 128, 65_536, 20.0, indices)


@pytest.mark.parametrize("name", ["V100-SXM2-32G", "A100-SXM4-40G", "H100-SXM-80G"])
def test_lookups_pass_smoothly_from_distinct_rows_to_one_row_for_all(name: str) -> None:
    gpu, reuse = load_gpu(name), np.geomspace(1, 10_000, 150)
    forward, backward = ([time_us(f, with_reuse(r, UNIFORM), gpu=gpu) for r in reuse] for f in FAMILIES)
    assert all(after <= before * 1.001 for before, after in pairwise(forward))
    assert all(0.85 < after / before < 1.25 for before, after in pairwise(backward))


@pytest.mark.parametrize("name", ["V100-SXM2-32G", "A100-SXM4-40G", "H100-SXM-80G"])
def test_blocks_that_share_an_sm_fold_a_row_little_slower_than_warps(name: str) -> None:
    gpu = load_gpu(name)
    warps, blocks, hot = (
        time_us("embedding_backward", with_reuse(r, UNIFORM), gpu=gpu) for r in (12, 40, 10_000)
    )
    assert 1.0 < blocks / warps < 1.8 and hot < warps


def test_wide_rows_leave_room_for_one_block_on_an_sm() -> None:
    narrow, wide = (replace(with_reuse(40, UNIFORM), dim=dim) for dim in (128, 256))
    assert time_us("embedding_backward", wide) > 1.5 * time_us("embedding_backward", narrow)


def test_rows_asked_for_unevenly_are_updated_faster_the_fewer_they_are() -> None:
    skewed = IndexDistribution.zipf(1.05)
    times = [time_us("embedding_backward", with_reuse(reuse, skewed)) for reuse in (4, 16, 33, 64, 256)]
    assert times == sorted(times, reverse=True)


def test_runs_that_blocks_fold_are_noted() -> None:
    kernels = [
        Kernel("embedding_backward", lookup=Lookup((with_reuse(reuse, UNIFORM),))) for reuse in (8, 48)
    ]
    notes = EmbeddingModel.for_gpu(load_gpu("A100-SXM4-40G")).estimate(kernels).notes
    assert 0 not in notes and "32 lookups" in notes[1]


@pytest.mark.parametrize("batch", [256, 2048, 65_536])
def test_bags_of_different_length_slow_a_lookup_by_the_longest_at_most(batch: int) -> None:
    even = TableLookup(1_000_000, 128, batch, 20.0, UNIFORM)
    spreads = (0.0, 0.25, 0.5, 1.0, 2.0)
    forward, backward = ([time_us(f, replace(even, bag_spread=s)) for s in spreads] for f in FAMILIES)
    assert forward == sorted(forward) and forward[1] < 1.3 * forward[0]
    assert backward == sorted(backward) and backward[-1] < 1.2 * backward[0]
    alone = replace(even, batch=1, pooling=20.0 * longest_over_mean(2.0, batch))
    assert forward[-1] < 1.6 * (time_us("embedding", alone) + longest_over_mean(2.0, 16) * forward[0])


def test_bags_of_different_length_even_out_over_the_turns_of_a_warp() -> None:
    even = [TableLookup(1_000_000, 128, 65_536, 20.0, UNIFORM)] * 8
    uneven = [replace(table, bag_spread=1.0) for table in even]
    assert time_us("embedding", *uneven) < 1.5 * time_us("embedding", *even)


def test_a_cache_is_searched_for_every_lookup_and_every_distinct_row() -> None:
    spread_out = TableLookup(1_000_000, 128, 65_536, 20.0, UNIFORM, placement="uvm_caching", cache_share=1.0)
    few = replace(spread_out, rows=1_000)
    columns = EmbeddingModel.for_gpu(V100).table_costs([spread_out, few]).forward[:, traffic.SOUGHT]
    lookups = spread_out.lookups
    assert columns[1] == pytest.approx(lookups + 1_000, rel=1e-3) and columns[0] > 1.3 * lookups
    on_device = replace(spread_out, placement="device")
    assert time_us("embedding", spread_out) > 1.2 * time_us("embedding", on_device)


def test_kernels_of_a_kind_that_was_not_measured_have_a_wider_interval() -> None:
    known = TableLookup(1_000_000, 128, 4096, 20.0, UNIFORM)
    model = EmbeddingModel.for_gpu(load_gpu("A100-SXM4-40G"))
    hot, cached = replace(known, rows=100), replace(known, placement="uvm_caching", cache_share=0.2)
    kernels = [Kernel("embedding_backward", lookup=Lookup((t,))) for t in (known, hot, cached)]
    measured, *others = model.estimate(kernels).spread
    assert all(other > measured for other in others)
