"""TorchRec's DLRM: the input pipeline and its host work, as a trace of it shows them."""

from collections import Counter

import pytest

from stepsight.errors import InputError
from stepsight.overheads.tables import DIVIDE_NS
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.workload.files import parse_workload


def document(stack: str = "torchrec", batch: int = 128, **parallel: object) -> dict[str, object]:
    return {
        "kind": "dlrm", "batch": batch,
        "dense": {"features": 13, "bottom": [512, 256, 16], "top": [512, 256, 128, 1]},
        "tables": [{"rows": 100_000, "dim": 16, "count": 26}],
        "training": {"optimizer": "adagrad", "loss": "bce_logits", "stack": stack},
        "parallel": {"ranks": 8, **parallel},
    }  # fmt: skip


def ops(**more):
    job = parse_workload(document(**more), "x").job()
    return job.programs[0].ops


def test_five_exchanges_a_step():
    """Splits, lengths and indices of the next batch; pooled rows and their gradients of this one."""
    names = [op.collective.name for op in ops() if op.collective and "all_to_all" in op.collective.kind]
    assert sorted(names) == ["gradients", "indices", "lengths", "pooled", "splits"]


def test_the_next_batch_does_not_wait_for_this_ones_compute():
    ahead = [op for op in ops() if op.collective and op.collective.name in ("splits", "lengths", "indices")]
    assert all(op.collective.after == ("data_dist",) for op in ahead)


def test_the_host_waits_for_sizes_and_index_copies():
    assert sum(op.blocks_host for op in ops()) == 7


def test_a_small_step_is_bound_by_the_host():
    platform = load_platform("8xV100-SXM2-32G")
    torchrec, plain = (
        predict(parse_workload(document(stack=stack), "x"), platform).step_time_us
        for stack in ("torchrec", "eager")
    )
    assert torchrec > 1.5 * plain


def test_half_precision_on_the_wire_halves_the_exchange_and_casts_twice_each_way():
    def exchanged(dtype: str) -> float:
        found = ops(exchange_dtype=dtype)
        return next(op.collective.bytes for op in found if op.collective and op.collective.name == "pooled")

    assert exchanged("bf16") == pytest.approx(exchanged("fp32") / 2)
    casts = [k.operator for op in ops(exchange_dtype="fp16") for k in op.kernels if k.operator == "quantise"]
    assert len(casts) == 4


@pytest.mark.data
def test_the_operator_stream_is_that_of_the_trace(measured_data):
    """One traced step of eight: small host operators, exchanges and waits, counted."""
    from stepsight.trace.job import rank_program, typical_step
    from stepsight.trace.run import load_trace

    run = load_trace(measured_data / "traces" / "dlrm_8xV100" / "kineto")
    traced = Counter(t.op.name for t in rank_program(run, run.ranks[0], typical_step(run)).ops)
    ours = Counter(op.name for op in ops())
    for name in ("aten::record_stream", "aten::flatten", "aten::fill_", "aten::pin_memory", "aten::relu"):
        assert abs(ours[name] - traced[name]) <= 2, name
    assert abs(ours["aten::lift_fresh"] - traced["aten::lift_fresh"]) <= 0.1 * traced["aten::lift_fresh"]
    assert abs(ours["aten::addcdiv_"] - traced["aten::addcdiv_"]) <= 2
    collectives = sum(t.op.collective is not None for t in rank_program(run, run.ranks[0], 0).ops)
    assert abs(sum(op.collective is not None for op in ops()) - collectives) <= 1
    measured_us = 13.31e3  # from the last rank's start to the last one's end, profiler included
    predicted = predict(parse_workload(document(), "x"), load_platform("8xV100-SXM2-32G")).step_time_us
    assert 0.7 < predicted / measured_us < 1.0


def test_a_loader_in_the_training_process_holds_the_step_up():
    """Eight V100s wait for their hosts: joined arrays, and divisions where the file is mapped."""
    platform = load_platform("8xV100-SXM2-32G")

    def step_us(loader: str) -> float:
        described = document(batch=16384)
        described["tables"] = [{"rows": 100_000, "dim": 16, "count": 26, "pooling": 8.0}]
        described["training"]["loader"] = loader
        return predict(parse_workload(described, "x"), platform).step_time_us

    none, memory, mapped = (step_us(loader) for loader in ("none", "memory", "mapped"))
    assert none < memory < mapped
    indices = 16384 / 8 * 26 * 8
    assert mapped - memory > 0.9 * indices * DIVIDE_NS / 1e3


def test_a_loader_is_torchrecs():
    described = document(stack="eager")
    described["training"]["loader"] = "mapped"
    with pytest.raises(InputError, match="loader: has no effect"):
        parse_workload(described, "x")
