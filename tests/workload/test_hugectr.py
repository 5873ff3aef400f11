"""HugeCTR's step: one graph, half precision, pooled vectors and gradients exchanged in fp16."""

from __future__ import annotations

import pytest

from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.tables.plan import DATA_PARALLEL, ROW_WISE, TABLE_WISE, table_kinds
from stepsight.workload.files import load_workload, parse_workload

EXAMPLE = "examples/published/dlrm_dcnv2_mlperf.toml"


def published(ranks: int = 8, *changes: str):
    return load_workload(EXAMPLE, [f"parallel.ranks={ranks}", *changes])


def test_small_tables_are_replicated_and_the_hottest_is_cut_by_rows():
    kinds = table_kinds(published().plan)
    assert kinds["cat_5"] == DATA_PARALLEL  # three rows
    assert kinds["cat_20"] == ROW_WISE  # a hundred lookups per sample
    assert kinds["cat_0"] == TABLE_WISE


def test_over_several_nodes_a_table_lies_on_whole_nodes_and_costs_more_to_send_than_to_look_up():
    plan = published(128, "batch=135168").plan
    nodes = {}
    for shard in plan.shards:
        if shard.kind == ROW_WISE:
            nodes.setdefault(shard.table, set()).add(shard.rank // 8)
    assert all(len(plan_ranks(plan, table)) == 8 * len(held) for table, held in nodes.items())
    assert len(nodes["cat_20"]) == 4 and len(nodes["cat_0"]) == 1
    busiest = max(sum(node in held for held in nodes.values()) for node in range(16))
    assert busiest == 1


def plan_ranks(plan, table: str) -> set[int]:
    return {shard.rank for shard in plan.shards if shard.table == table}


def test_weight_gradients_run_while_gradients_of_vectors_travel():
    ops = published().job().programs[0].ops
    sent = next(i for i, op in enumerate(ops) if op.collective and op.collective.name == "gradients")
    wgrads = [i for i, op in enumerate(ops) if any(k.operator == "wgrad" for k in op.kernels)]
    assert min(wgrads) > sent


def test_the_network_sums_gradients_of_several_nodes():
    ops = published(16, "batch=65536").job().programs[0].ops
    kinds = [op.collective.kind for op in ops if op.name == "all_reduce"]
    assert kinds == ["reduce_scatter", "reduce", "all_gather"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tables.placement=uvm_caching", "unweighted tables on the device"),
        ("tables.weighted=true", "unweighted tables on the device"),
        ("training.cuda_graph=false", "the step is one CUDA graph"),
        ("parallel.exchange_dtype=int8", "half precision"),
        ("parallel.bucket_mb=1", "one buffer"),
        ("training.sparse_update=scattered", "every row is updated once"),
    ],
)
def test_what_hugectr_does_otherwise_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        published(8, change)


@pytest.mark.parametrize(
    "change",
    ["tables.placement=uvm", "tables.pooling=20", "tables.dtype=int8", "parallel.fused_lookup=false"],
)
def test_what_nvidias_example_does_not_have_is_refused(change):
    with pytest.raises(InputError, match="nvidia"):
        load_workload("examples/dlrm_nvidia_large.toml", ["parallel.ranks=8", change])


def test_products_run_in_half_precision_and_vectors_travel_in_it():
    ops = published().job().programs[0].ops
    assert {k.dtype for op in ops for k in op.kernels if k.family == "gemm"} == {"fp16"}
    assert {op.collective.dtype for op in ops if op.collective} == {"fp16"}


def test_the_whole_step_is_one_launch():
    ops = published().job().programs[0].ops
    assert ops[0].name == "cudaGraphLaunch"
    assert all(op.overhead_us is not None for op in ops[1:])


def test_more_ranks_take_less_time_and_pay_more_of_it_to_each_other():
    steps = [predict(published(n, "batch=65536"), load_platform(p)) for n, p in (
        (8, "8xH100-SXM"), (64, "8x8xH100-SXM"))]  # fmt: skip
    assert steps[1].step_time_us < steps[0].step_time_us
    shares = [p.breakdown_us["exposed_communication"] / p.step_time_us for p in steps]
    assert shares[1] > shares[0]


def test_a_dot_interaction_and_one_rank_are_known_too():
    document = {
        "kind": "dlrm", "batch": 1024, "dense": {"features": 13, "bottom": [64], "top": [64, 1]},
        "tables": [{"rows": 1000, "dim": 64, "count": 3}],
        "training": {"stack": "hugectr", "precision": "fp16", "loss": "bce_logits"},
    }  # fmt: skip
    assert not any(op.collective for op in parse_workload(document, "x").job().programs[0].ops)


@pytest.mark.parametrize("change", ["training.precision=fp32", "training.loss=bce"])
def test_what_the_stack_is_not_known_for_is_refused(change: str):
    with pytest.raises(InputError, match="hugectr"):
        published(8, change)


def test_earlier_names_of_stacks_are_read():
    table = {"rows": 1000, "dim": 64, "pooling": 1.0}
    dense = {"features": 16, "bottom": [64], "top": [1]}
    for old, new in (("now", "eager"),):
        document = {
            "kind": "dlrm",
            "batch": 64,
            "dense": dense,
            "tables": [table],
            "training": {"stack": old},
        }
        config = parse_workload(document, "x").config
        assert config.stack == new
        assert config.notes == (f'training.stack = "{old}" is the earlier name of "{new}"',)
