"""Questions to a traced step."""

from __future__ import annotations

import pytest

from stepsight.errors import StepsightError
from stepsight.platform.load import load_platform
from stepsight.prediction.answer import predict_job
from stepsight.prediction.traced import whatif
from stepsight.program.job import Collective, HostTimes, Job, Kernel, Op, RankProgram, Wait
from stepsight.program.observation import ObservedJob

PLATFORM = load_platform("4xV100-SXM2")
TIMES = HostTimes(5.0, 200.0, 5.0, 8.0, 5.0)


def _job() -> ObservedJob:
    gemm = Kernel.of("gemm", "fp32", batch=1, m=512, n=512, k=512)
    add = Kernel.of("elementwise", "fp32", elements=2**20, read_bytes=2**22, write_bytes=2**22)
    ops = (
        Op("aten::linear", (gemm,), overhead_us=TIMES),
        Op("aten::add", (add,), overhead_us=TIMES),
        Op("aten::mul", (add,), overhead_us=TIMES),
        Op("nccl:all_reduce", collective=Collective("all_reduce", 4e6), phase="backward", overhead_us=TIMES),
        Op("nccl:all_reduce", collective=Collective("all_reduce", 6e6), phase="backward", overhead_us=TIMES),
        Op("Optimizer.step", (add,), waits=(Wait("compute", 3), Wait("compute", 4)), overhead_us=TIMES),
    )
    return ObservedJob(Job.replicated(RankProgram(ops), 4))


def _step(job: ObservedJob, platform=PLATFORM) -> float:
    return predict_job(job.job, platform, seen=job.seen).step_time_us


def test_without_host_time_only_the_device_is_left():
    assert _step(whatif.without_host(_job())) < _step(_job())


def test_dropping_ops_shortens_the_step():
    assert _step(whatif.without_ops(_job(), "all_reduce")) < _step(_job())


def test_fusing_saves_the_traffic_between_and_the_host_time():
    fused = whatif.fused(_job(), r"aten::(add|mul)")
    kernels = [k for op in fused.job.programs[0].ops for k in op.kernels]
    assert len(kernels) == 3
    assert _step(fused) < _step(_job())


def test_a_larger_bucket_joins_the_all_reduces():
    ops = whatif.with_bucket(_job(), 25).job.programs[0].ops
    assert [op.collective.bytes for op in ops if op.collective] == [10e6]
    assert ops[-1].waits == (Wait("compute", 4), Wait("compute", 4))


def test_a_small_bucket_leaves_them_apart():
    ops = whatif.with_bucket(_job(), 1).job.programs[0].ops
    assert [op.collective.bytes for op in ops if op.collective] == [4e6, 6e6]


def test_more_ranks_run_the_same_program():
    assert whatif.with_ranks(_job(), 8).job.ranks == 8


def test_as_many_ranks_as_before_change_nothing():
    assert whatif.with_ranks(_job(), 4) == _job()


def _bytes(*collectives: tuple[str, str], ranks: int = 8) -> list[float]:
    ops = tuple(Op("nccl", collective=Collective(kind, 1e6), phase=phase) for kind, phase in collectives)
    widened = whatif.with_ranks(ObservedJob(Job.replicated(RankProgram(ops), 4)), ranks)
    return [op.collective.bytes for op in widened.job.programs[0].ops if op.collective]


def test_weights_and_gradients_are_as_large_on_any_number_of_ranks():
    fully_sharded = ("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward")
    assert _bytes(*fully_sharded, ("all_gather", "optimizer"), ("all_reduce", "backward")) == [1e6] * 5


def test_results_that_every_rank_adds_to_grow_with_the_ranks():
    row_wise = ("reduce_scatter", "forward"), ("all_gather", "backward")
    assert _bytes(*row_wise) == [2e6, 2e6]


def test_more_nodes_are_joined_by_the_usual_network():
    spec = whatif.with_nodes(PLATFORM, 4).spec
    assert (spec.ranks, spec.nodes, spec.link) == (16, 4, PLATFORM.spec.link)
    assert spec.nic is not None


def test_tensor_parallel_groups_are_not_widened():
    ops = (Op("nccl", collective=Collective("all_reduce", 1e6, group="tp")),)
    with pytest.raises(StepsightError, match="tp"):
        whatif.with_ranks(ObservedJob(Job.replicated(RankProgram(ops), 2)), 4)


def test_a_batch_twice_as_large_grows_activations_and_not_gradients():
    ops = whatif.with_batch(_job(), 2).job.programs[0].ops
    assert ops[0].kernels[0].dim("m") == 1024
    assert ops[3].collective.bytes == 4e6


def test_another_gpu_keeps_the_number_of_gpus():
    assert whatif.on_gpu(PLATFORM, "A100-SXM4-40G").spec.ranks == 4


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(StepsightError, match="regular expression"):
        whatif.without_ops(_job(), "(")
