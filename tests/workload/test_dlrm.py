"""The hybrid-parallel DLRM: what follows the plan, what overlaps, what is shared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.program.job import COMPUTE, Op, Wait
from stepsight.tables.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, Plan, Shard
from stepsight.workload.dlrm.build import DlrmWorkload, build
from stepsight.workload.files import load_workload, parse_workload

EXAMPLES = Path(__file__).parents[1] / "data" / "workloads"


def dlrm(*overrides: str) -> DlrmWorkload:
    workload = load_workload(EXAMPLES / "dlrm.toml", overrides)
    assert isinstance(workload, DlrmWorkload)
    return workload


def test_ranks_with_alike_tables_share_one_program() -> None:
    job = dlrm().job()
    assert job.ranks == 4
    assert len(job.programs) == 1


def test_programs_have_the_same_structure_whatever_the_plan() -> None:
    job = dlrm("parallel.sharding=[0, 0, 0, 0, 0, 1, 1, 2]").job()
    shapes = {tuple((op.name, len(op.waits), op.collective is None) for op in p.ops) for p in job.programs}
    assert len(job.programs) == 4
    assert len(shapes) == 1


def test_ranks_differ_only_in_the_ops_that_follow_the_plan() -> None:
    workload = dlrm("parallel.sharding=[0, 0, 0, 0, 0, 1, 1, 2]")
    job, marks = workload.job(), build(workload.config, "cuda")[1]
    known = {marks.copy_indices, marks.copy_offsets, marks.lookup_forward, marks.lookup_backward,
             marks.alltoall_forward, marks.alltoall_backward}  # fmt: skip
    first, second = job.programs[0].ops, job.programs[1].ops
    assert {i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a is not b} == known


def test_a_rank_without_tables_looks_up_nothing() -> None:
    workload = dlrm("parallel.sharding=[0, 0, 0, 0, 0, 1, 1, 2]")
    lookup = (
        workload.job().programs[3].ops[build(workload.config, "cuda")[1].lookup_forward].kernels[0].lookup
    )
    assert lookup is not None
    assert lookup.tables == ()


def test_each_rank_looks_up_its_tables_for_the_whole_batch() -> None:
    workload = dlrm("parallel.sharding=[0, 0, 0, 0, 0, 1, 1, 2]")
    lookup = (
        workload.job().programs[0].ops[build(workload.config, "cuda")[1].lookup_forward].kernels[0].lookup
    )
    assert lookup is not None
    assert [(t.batch, t.dim, t.pooling) for t in lookup.tables] == [(4096, 128, 20.0)] * 5


def test_rows_are_updated_one_by_one_where_the_file_says_so() -> None:
    for given, is_sorted in (("sorted", True), ("scattered", False)):
        workload = dlrm(f"training.sparse_update={given}")
        ops = workload.job().programs[0].ops
        lookups = [kernel.lookup for op in ops for kernel in op.kernels if kernel.lookup is not None]
        assert [lookup.update == "sorted" for lookup in lookups] == [is_sorted, is_sorted]


def test_the_all_to_all_carries_each_ranks_columns_to_every_rank() -> None:
    workload = dlrm("parallel.sharding=[0, 0, 0, 0, 0, 1, 1, 2]")
    marks, ops = build(workload.config, "cuda")[1], workload.job().programs[0].ops
    forward = _collective(ops[_known(marks.alltoall_forward)])
    backward = _collective(ops[_known(marks.alltoall_backward)])
    rows = np.array([5, 2, 1, 0]) * 128 * 1024 * 4
    assert np.array_equal(forward, np.repeat(rows[:, None], 4, axis=1))
    assert np.array_equal(backward, forward.T)


def test_the_bottom_mlp_runs_under_the_all_to_all() -> None:
    workload = dlrm()
    ops, marks = workload.job().programs[0].ops, build(workload.config, "cuda")[1]
    started = _known(marks.alltoall_forward)
    waits = [i for i, op in enumerate(ops) if Wait(COMPUTE, started) in op.waits]
    between = [op.name for op in ops[started + 1 : waits[0]]]
    assert between.count("aten::linear") == 3
    assert ops[waits[0]].name == "All2All_Pooled_Wait"


def test_gradients_are_exchanged_under_the_bottom_mlps_backward() -> None:
    workload = dlrm()
    ops, marks = workload.job().programs[0].ops, build(workload.config, "cuda")[1]
    started = _known(marks.alltoall_backward)
    waited = next(i for i, op in enumerate(ops) if Wait(COMPUTE, started) in op.waits)
    assert sum("AddmmBackward0" in op.name for op in ops[started:waited]) == 3
    assert waited < marks.lookup_backward


def test_one_rank_communicates_nothing() -> None:
    job = dlrm("parallel.ranks=1").job()
    assert all(op.collective is None for op in job.programs[0].ops)


def test_a_dot_interaction_projects_odd_tables() -> None:
    even = [op.name for op in dlrm().job().programs[0].ops].count("aten::linear")
    odd = [op.name for op in dlrm("tables.dim=32").job().programs[0].ops].count("aten::linear")
    assert odd - even == 8


def test_column_parts_of_a_table_are_put_together_again() -> None:
    workload = dlrm("tables.count=1", "parallel.ranks=2")
    table = workload.tables[0]
    parts = [
        Shard(table.name, rank, (64 * rank, 64 * rank + 64), (0, table.rows), COLUMN_WISE) for rank in (0, 1)
    ]
    halves = Plan(2, tuple(parts))
    job = workload.with_plan(halves).job()
    names = [op.name for op in job.programs[0].ops]
    assert "aten::split_with_sizes" in names
    assert names.count("aten::cat") == 3


def test_row_parts_of_a_table_are_partial_sums_and_share_its_lookups() -> None:
    workload = dlrm("tables.count=1", "parallel.ranks=2")
    table = workload.tables[0]
    top = Shard(table.name, 0, (0, 128), (0, 250_000), ROW_WISE)
    rest = Shard(table.name, 1, (0, 128), (250_000, table.rows), ROW_WISE)
    split = workload.with_plan(Plan(2, (top, rest)))
    job = split.job()
    looked_up = [p.ops[build(split.config, "cuda")[1].lookup_forward].kernels[0].lookup for p in job.programs]
    assert [lookup.tables[0].pooling for lookup in looked_up if lookup] == [5.0, 15.0]
    assert "aten::add" in [op.name for op in job.programs[0].ops]


def test_a_replicated_table_is_looked_up_locally_and_its_gradient_reduced() -> None:
    workload = dlrm("tables.count=2", "parallel.ranks=2")
    first, second = workload.tables
    whole = ((0, 128), (0, first.rows))
    shards = (Shard(first.name, 0, *whole), *(Shard(second.name, r, *whole, DATA_PARALLEL) for r in (0, 1)))
    mixed = workload.with_plan(Plan(2, shards))
    ops, marks = mixed.job().programs[0].ops, build(mixed.config, "cuda")[1]
    lookup = ops[marks.lookup_forward].kernels[0].lookup
    assert lookup is not None
    assert [part.batch for part in lookup.tables] == [4096, 2048]
    sent = _collective(ops[_known(marks.alltoall_forward)])
    assert sent.tolist() == [[128 * 2048 * 4.0] * 2, [0.0, 0.0]]
    after = [op.collective for op in ops[marks.lookup_backward :] if op.collective]
    assert [c.bytes for c in after] == [first.rows * 128 * 4]


def test_indices_are_sent_first_where_each_rank_reads_its_own_samples() -> None:
    here = [op.collective for op in dlrm("parallel.input_dist=true").job().programs[0].ops if op.collective]
    assert [c.name for c in here[:3]] == ["lengths", "indices", "pooled"]
    assert here[1].bytes == 4096 * 8 * 20 / 4 * 8
    blocking = [op for op in dlrm("parallel.input_dist=true").job().programs[0].ops if op.blocks_host]
    assert len(blocking) == 1


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_lower_precision_casts_parameters_once_and_multiplies_in_it(precision: str) -> None:
    kernels = [k for op in dlrm(f"training.precision={precision}").job().programs[0].ops for k in op.kernels]
    assert {k.dtype for k in kernels if k.family == "gemm"} == {precision}
    forward_casts = [k for k in kernels if k.operator == "cast"]
    assert len(forward_casts) > 14


def test_tf32_multiplies_fp32_tensors_on_tensor_cores() -> None:
    kernels = [k for op in dlrm("training.precision=tf32").job().programs[0].ops for k in op.kernels]
    assert {k.dtype for k in kernels if k.family == "gemm"} == {"tf32"}
    assert not [k for k in kernels if k.operator == "cast"]


def _known(index: int | None) -> int:
    assert index is not None
    return index


def _collective(op: Op) -> np.ndarray:
    assert op.collective is not None and op.collective.send_bytes is not None
    return op.collective.send_bytes


def small(**changes: object):
    document = {
        "kind": "dlrm", "batch": 512, "dense": {"features": 16, "bottom": [64], "top": [64, 1]},
        "tables": [{"rows": 1000, "dim": 64, "count": 8, "pooling": 4.0}],
        "training": {}, "parallel": {"ranks": 2},
    }  # fmt: skip
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if section == "tables":
            document["tables"][0][name] = value
        else:
            document[section][name] = value
    return parse_workload(document, "x")


@pytest.mark.parametrize("stack", ["eager", "torchrec"])
def test_half_precision_with_master_weights_multiplies_in_half_precision(stack):
    found = small(training__precision="fp16", training__master_weights=True, training__stack=stack)
    gemms = [k for op in found.job().programs[0].ops for k in op.kernels if k.family == "gemm"]
    assert gemms and {k.dtype for k in gemms} == {"fp16"}


@pytest.mark.parametrize("dim", [3, 130, 4096])
def test_a_dim_that_fbgemm_cannot_take_is_refused_where_it_looks_up(dim):
    found = small(tables__dim=dim)
    with pytest.raises(InputError, match=r"table 't0_0'.*multiple of 4"):
        found.job()
    found.job("cpu")
    small(tables__dim=dim, parallel__fused_lookup=False).job()


def test_lookups_that_are_not_fused_take_the_host_longer():
    platform = load_platform("2xA100-SXM4-40G")
    fused, separate = (
        predict(small(parallel__fused_lookup=fused), platform).step_time_us for fused in (True, False)
    )
    assert separate > fused + 4 * 10  # four tables on each rank


def test_index_files_are_found_next_to_the_workload(tmp_path: Path) -> None:
    np.savez(tmp_path / "indices.npz", indices=np.arange(40) % 7, offsets=np.arange(5) * 10)
    text = Path("examples/dlrm.toml").read_text().replace("{ zipf = 1.05 } ", '{ file = "indices.npz" } ')
    (tmp_path / "dlrm.toml").write_text(text)
    table = load_workload(tmp_path / "dlrm.toml").config.tables[0]
    assert table.indices.path == str(tmp_path / "indices.npz")


def test_an_optimizer_of_tables_is_named_where_the_dense_part_asks_for_it():
    with pytest.raises(InputError, match='set sparse_optimizer = "rowwise_adagrad"'):
        small(training__optimizer="rowwise_adagrad")


def test_features_that_share_a_table_have_a_pooled_output_each():
    shared, apart = small(tables__count=1, tables__features=4), small(tables__count=4)
    assert sum(t.output_columns for t in shared.tables) == sum(t.output_columns for t in apart.tables)
    assert sum(t.lookups for t in shared.tables) == sum(t.lookups for t in apart.tables)
    with pytest.raises(InputError, match="features"):
        small(tables__features=2, training__stack="nvidia", training__loss="bce_logits", tables__pooling=1.0)
