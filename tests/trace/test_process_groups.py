"""Process groups of collectives: those that calls name, and calls that do not match."""

from __future__ import annotations

import pytest

from stepsight.prediction.traced.predict import predict_trace
from stepsight.trace.job import collective_waiting, groups_of, job_of, rank_program
from tests.trace.making import Made, made_run

TP = 20


def _rank(rank: int, world: int, calls) -> Made:
    """A rank whose NCCL kernels stand on one stream a communicator: (stream, kernel, start, end)."""
    made = Made(rank, world, device="NVIDIA A100-SXM4-40GB")
    made.step(0, 0, 10_000)
    made.op("aten::relu", 1, 50, [[256, 64]])
    made.launch(10, 5, "vectorized_elementwise_kernel<4, relu>", 20, 50, grid=[4, 1, 1], block=[128, 1, 1])
    for i, (stream, kernel, start, end) in enumerate(calls):
        made.launch(100 + 20 * i, 5, kernel, start, end - start, stream=stream)
    return made


def test_collectives_that_do_not_match_keep_their_own_times():
    first = [(TP, "ncclKernel_AllReduce_RING_LL", 300, 500), (TP, "ncclKernel_AllGather_RING_LL", 600, 800)]
    run = made_run(_rank(0, 2, first), _rank(1, 2, first[:1]))
    for prediction in (predict_trace(run, replay=True), predict_trace(run, models_only=True)):
        exposed = [rank.exposed_communication_us for rank in prediction.ranks]
        assert exposed == pytest.approx([400.0, 200.0], rel=0.1)


def _named(rank: int, start: float, members: list[int]) -> Made:
    """A rank of four with one all_reduce of a group that every rank calls "1"."""
    made = Made(rank, 4, device="NVIDIA A100-SXM4-40GB")
    made.step(0, 0, 3000)
    made.op("aten::relu", 1, 50, [[256, 64]])
    made.launch(10, 5, "vectorized_elementwise_kernel<4, relu>", 20, 50, grid=[4, 1, 1], block=[128, 1, 1])
    call = {
        "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float",
        "Group size": 2, "Process Group Name": "1", "Process Group Ranks": str(members),
    }  # fmt: skip
    made.op("record_param_comms", 90, 30, **call)
    end = 2000.0 if rank > 1 else 1000.0
    made.launch(100, 5, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", start, end - start, stream=TP)
    return made


def test_groups_of_one_name_on_different_ranks_are_different_sets():
    starts = [300.0, 900.0, 1500.0, 1900.0]
    ranks = [_named(r, starts[r], [r // 2 * 2, r // 2 * 2 + 1]) for r in range(4)]
    run = made_run(*ranks)
    programs = {r.rank: rank_program(run, r, 0) for r in run.ranks}
    assert [g.ranks for g in groups_of(run, programs)["1"]] == [(0, 1), (2, 3)]
    waited = [us for of_rank in collective_waiting(run, 0) for _, us in of_rank]
    assert waited == [600.0, 0.0, 400.0, 0.0]
    job = job_of(run, programs)
    own = [seen[-1].measured_us for op, seen in job.ops() if op.collective]
    assert own == [100.0] * 4
