"""A prediction adds up, explains itself, and reacts to what-ifs as physics does."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsight import load_platform, load_workload, predict
from stepsight.capturing.step import CapturedStep
from stepsight.prediction.answer import predict_job
from stepsight.prediction.compare import compare
from stepsight.prediction.predict import predict_captured
from stepsight.program.job import Collective, Job, Kernel, Op, RankProgram

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def dlrm():
    return predict(load_workload(EXAMPLES / "dlrm.toml"), load_platform("4xV100-SXM2"))


def test_the_parts_add_up_to_the_step(dlrm):
    assert sum(dlrm.breakdown_us.values()) == pytest.approx(dlrm.step_time_us, rel=0.02)


def test_the_interval_holds_the_number(dlrm):
    assert dlrm.low_us < dlrm.step_time_us < dlrm.high_us


def test_every_rank_is_reported(dlrm):
    assert [r.rank for r in dlrm.ranks] == [0, 1, 2, 3]
    for rank in dlrm.ranks:
        assert rank.gpu_active_us + rank.idle_us == pytest.approx(rank.step_us)


def test_coverage_accounts_for_all_device_time(dlrm):
    coverage = dlrm.coverage
    assert sum(coverage.share_by_source.values()) == pytest.approx(1.0)
    for source, part in coverage.share_by_source.items():
        kernels, talk = (
            each.get(source, 0.0) for each in (coverage.kernels_by_source, coverage.communication_by_source)
        )
        assert kernels + talk == pytest.approx(part)


def test_a_free_part_never_makes_the_step_longer(dlrm):
    for sensitivity in dlrm.sensitivity:
        assert sensitivity.if_free_us <= dlrm.step_time_us * (1 + 1e-9)


def test_the_mean_of_several_captured_steps_is_one_step_in_every_figure():
    kernel = Kernel.of("gemm", "bf16", m=2048, n=2048, k=2048)
    once, twice = (Job.replicated(RankProgram((Op("aten::mm", (kernel,)),) * n), 1) for n in (20, 40))
    one, mean = (
        predict_captured(CapturedStep("train.py", "", job, steps=n), load_platform("1xH100-SXM"))
        for job, n in ((once, 1), (twice, 2))
    )
    assert mean.step_time_us == pytest.approx(one.step_time_us, rel=0.02)
    for single, of_mean in zip(one.sensitivity, mean.sensitivity, strict=True):
        assert of_mean.if_free_us <= mean.step_time_us * (1 + 1e-9)
        assert of_mean.if_free_us == pytest.approx(single.if_free_us, rel=0.05, abs=5)


def test_a_faster_host_is_never_slower():
    workload = load_workload(EXAMPLES / "dlrm.toml")
    usual = predict(workload, load_platform("4xV100-SXM2"))
    fast = predict(workload, load_platform("4xV100-SXM2", ["host.speed=4"]))
    assert fast.step_time_us < usual.step_time_us
    assert compare(usual, fast).speedup > 1


def test_a_thousand_ranks_share_one_program():
    kernel = Kernel.of("gemm", m=512, n=512, k=512)
    program = RankProgram(
        (Op("aten::mm", (kernel,)), Op("c10d::allreduce_", collective=Collective("all_reduce", 1e6)))
    )
    prediction = predict_job(Job.replicated(program, 1024), load_platform("128x8xH100-SXM-400G"))
    assert len(prediction.ranks) == 1024
    assert prediction.imbalance == 0


def test_compute_under_communication_slows_where_the_platform_says_so():
    ops = (
        Op("a", (Kernel.of("gemm", m=512, n=512, k=512),)),
        Op("c10d::allreduce_", collective=Collective("all_reduce", 64e6)),
        *(Op("b", (Kernel.of("gemm", m=4096, n=4096, k=4096),)) for _ in range(4)),
    )
    job = Job.replicated(RankProgram(ops), 4)
    apart = ["contention.compute_under_comm=1.0", "contention.comm_under_compute=1.0"]
    alone = predict_job(job, load_platform("4xV100-SXM2", apart))
    shared = predict_job(job, load_platform("4xV100-SXM2", ["contention.compute_under_comm=1.5"]))
    assert alone.step_time_us < shared.step_time_us < alone.step_time_us * 1.5


def test_an_op_nobody_knows_is_counted_never_zero():
    job = Job.replicated(RankProgram((Op("my::op", (Kernel.of("no_such_family"),)),)), 1)
    prediction = predict_job(job, load_platform("1xV100-SXM2"))
    assert prediction.step_time_us > 0
    assert prediction.coverage.without_model[0].op == "my::op"
