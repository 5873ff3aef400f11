"""Tables cut by rows inside a node: summed there, then sent once between nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepsight.errors import InputError
from stepsight.program.job import COMPUTE, Op, Wait
from stepsight.tables.plan import TABLE_ROW_WISE, Plan, Shard
from stepsight.workload.dlrm.build import DlrmWorkload, build
from stepsight.workload.files import load_workload

EXAMPLES = Path(__file__).parents[1] / "data" / "workloads"


def on_nodes(*, columns: int = 1) -> DlrmWorkload:
    """Four ranks in two nodes: the first table cut over node 1, the others whole on rank 0."""
    workload = load_workload(EXAMPLES / "dlrm.toml", ())
    assert isinstance(workload, DlrmWorkload)
    first, *rest = workload.tables
    width, half = first.dim // columns, first.rows // 2
    cut = [
        Shard(first.name, rank, (c * width, c * width + width), rows, TABLE_ROW_WISE)
        for c in range(columns)
        for rank, rows in ((2, (0, half)), (3, (half, first.rows)))
    ]
    whole = [Shard(t.name, 0, (0, t.dim), (0, t.rows)) for t in rest]
    return workload.with_plan(Plan(4, (*cut, *whole)))


def ops_of(workload: DlrmWorkload, rank: int) -> tuple[Op, ...]:
    job = workload.job()
    return job.programs[job.program_of_rank[rank]].ops


def test_partial_sums_are_added_in_the_node_and_exchanged_among_peers() -> None:
    workload = on_nodes()
    ops = ops_of(workload, 2)
    forward = [op.collective for op in ops if op.collective and op.phase == "forward"]
    assert [(c.kind, c.group) for c in forward] == [
        ("reduce_scatter", "node"), ("all_to_allv", "world"), ("all_to_allv", "peers"),
    ]  # fmt: skip
    assert forward[0].bytes == 4096 * 128 * 4
    assert forward[2].send_bytes is not None
    assert forward[2].send_bytes.tolist() == [[0.0, 0.0], [1024 * 128 * 4.0] * 2]


def test_gradients_go_the_other_way() -> None:
    ops = ops_of(on_nodes(), 2)
    back = [op.collective for op in ops if op.collective and op.phase == "backward"]
    kinds = [(c.kind, c.group) for c in back if c.kind != "all_reduce"]
    assert kinds == [("all_to_allv", "peers"), ("all_to_allv", "world"), ("all_gather", "node")]
    gathered = next(i for i, op in enumerate(ops) if op.collective and op.collective.kind == "all_gather")
    waited = next(i for i, op in enumerate(ops) if Wait(COMPUTE, gathered) in op.waits)
    assert waited < build(on_nodes().config, "cuda")[1].lookup_backward


def test_the_compute_stream_waits_for_the_sums_but_not_for_the_exchange() -> None:
    ops = ops_of(on_nodes(), 0)
    names = [op.name for op in ops]
    assert names.index("ReduceScatter_Wait") < names.index("aten::linear")
    assert names.index("aten::linear") < names.index("All2All_Pooled_Wait")


def test_groups_are_the_nodes_and_the_ranks_of_equal_place() -> None:
    groups = on_nodes().job().groups
    assert [g.ranks for g in groups["node"]] == [(0, 1), (2, 3)]
    assert [g.ranks for g in groups["peers"]] == [(0, 2), (1, 3)]


def test_ranks_sum_what_their_own_node_holds() -> None:
    sums = [
        next(op.collective.bytes for op in ops_of(on_nodes(), rank) if op.collective) for rank in range(4)
    ]
    assert sums == [0.0, 0.0, 4096 * 128 * 4, 4096 * 128 * 4]


def test_sums_need_no_adding_and_column_parts_of_them_stand_side_by_side() -> None:
    whole, halves = ([op.name for op in ops_of(on_nodes(columns=c), 0)] for c in (1, 2))
    assert "aten::add" not in whole
    assert halves.count("aten::cat") == whole.count("aten::cat") + 1


def test_a_cpu_exchanges_row_parts_as_they_are() -> None:
    job = on_nodes().job("cpu")
    kinds = {op.collective.group for op in job.programs[0].ops if op.collective}
    assert kinds == {"world"}


def test_ranks_that_are_no_node_are_refused() -> None:
    workload = on_nodes()
    astray = [replace(s, rank=1) if s.rank == 2 else s for s in workload.plan.shards]
    with pytest.raises(InputError, match="no node of 2 ranks"):
        workload.with_plan(replace(workload.plan, shards=tuple(astray))).job()
