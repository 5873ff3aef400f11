"""A traced step as ops: host times, waits, blocking calls, collectives."""

from __future__ import annotations

import pytest

from stepsight.program.job import COMM, COMPUTE, HOST, Wait
from stepsight.trace.job import job_of, rank_program
from stepsight.trace.program import STEP_END, StepProgram
from tests.trace.making import Made, made_run


def _program(made: Made) -> StepProgram:
    run = made_run(made)
    return rank_program(run, run.ranks[0], 0)


def test_host_times_are_those_between_the_marks():
    made = Made()
    made.step(0, 0, 100)
    made.op("aten::first", 10, 40)
    made.launch(15, 4, "k1", 25, 2)
    made.launch(22, 6, "k2", 30, 2)
    made.op("aten::second", 57, 10)
    made.launch(60, 3, "k3", 70, 2)
    first, second, end = (t.op for t in _program(made).ops)
    times = first.overhead_us
    assert (times.t1, times.t2, times.t3, times.t4, times.t5) == (10, 5, 22, 5, 3)
    assert second.overhead_us.t1 == 7
    assert (end.name, end.overhead_us.t1) == (STEP_END, 33)


def test_an_op_without_launches_has_its_whole_time_in_t5():
    made = Made()
    made.step(0, 0, 100)
    made.op("aten::view", 10, 4)
    made.op("aten::add", 20, 10)
    made.launch(22, 3, "k", 30, 2)
    assert _program(made).ops[0].op.overhead_us.t5 == 4


def test_the_host_waits_for_the_kernel_a_synchronize_waited_for():
    made = Made()
    made.step(0, 0, 300)
    made.op("aten::mul", 10, 20)
    made.launch(15, 5, "long", 30, 100)
    made.call("cudaStreamSynchronize", 40, 95)
    ops = [t.op for t in _program(made).ops]
    assert ops[1].waits == (Wait(HOST, 0),)
    assert ops[1].overhead_us.t5 == pytest.approx(5)


def test_a_long_synchronize_may_return_before_its_kernel_ends_on_the_devices_clock():
    made = Made()
    made.step(0, 0, 3000)
    made.op("aten::mul", 10, 20)
    made.launch(15, 5, "early, on another stream", 100, 60, stream=9)
    made.launch(22, 5, "long", 30, 2000)
    made.call("cudaStreamSynchronize", 40, 1970)  # the device's clock is 20 µs ahead
    ops = [t.op for t in _program(made).ops]
    assert ops[1].waits == (Wait(HOST, 0),)
    assert ops[1].overhead_us.t5 == 0


def test_a_copy_call_that_returns_with_its_copy_blocks_the_host():
    made = Made()
    made.step(0, 0, 300)
    made.op("aten::item", 10, 110)
    made.launch(
        15, 100, "Memcpy DtoH (Device -> Pageable)", 100, 5, call="cudaMemcpyAsync", cat="gpu_memcpy", bytes=4
    )
    op = _program(made).ops[0].op
    assert op.blocks_host
    assert op.overhead_us.t4 < 20


def test_a_launch_that_loads_its_kernel_first_is_the_host_s_time():
    made = Made()
    made.step(0, 0, 3000)
    made.op("aten::conv2d", 10, 2100)
    made.launch(15, 2000, "first_of_its_kind", 1900, 50)
    op = _program(made).ops[0].op
    assert op.blocks_host
    assert op.overhead_us.t4 == 1885.0


def test_a_collective_waits_for_what_made_its_input_and_readers_for_it():
    made = Made()
    made.step(0, 0, 400)
    made.op("aten::mul", 10, 20)
    made.launch(15, 5, "make", 30, 50, stream=7)
    made.annotation("nccl:all_reduce", 40, 20)
    made.call("cudaStreamWaitEvent", 45, 1)
    made.launch(50, 5, "ncclKernel_AllReduce_RING_LL_Sum_float", 82, 60, stream=20)
    made.call("cudaStreamWaitEvent", 70, 1)
    made.op("aten::add", 72, 20)
    made.launch(75, 5, "read", 144, 10, stream=7)
    program = _program(made)
    ops = [t.op for t in program.ops]
    reduce = next(i for i, op in enumerate(ops) if op.collective)
    assert ops[reduce].waits == (Wait(COMM, 0),)
    assert ops[-2].waits == (Wait(COMPUTE, reduce),)


def test_work_on_two_threads_at_once_is_not_counted_twice():
    made = Made()
    made.step(0, 0, 200)
    made.op("aten::a", 10, 100)
    made.launch(20, 5, "k1", 30, 2)
    made.op("BBackward0", 30, 60, tid=2)
    made.launch(40, 5, "k2", 50, 2, tid=2)
    program = _program(made)
    spent = sum(
        t.op.overhead_us.t1 + t.op.overhead_us.t2 + t.op.overhead_us.t3 + t.op.overhead_us.t4
        for t in program.ops
        if t.op.name != STEP_END
    )
    assert spent == pytest.approx(110)


def test_a_collectives_own_time_leaves_out_the_wait_for_the_last_rank():
    traces = []
    for rank, arrives in ((0, 20.0), (1, 70.0)):
        made = Made(rank, 2)
        made.step(0, 0, 200)
        made.annotation("nccl:all_reduce", arrives - 15, 12)
        made.launch(arrives - 10, 5, "ncclKernel_AllReduce", arrives, 100 - arrives, stream=20)
        traces.append(made)
    run = made_run(*traces)
    job = job_of(run, {r.rank: rank_program(run, r, 0) for r in run.ranks})
    assert [seen[-1].measured_us for op, seen in job.ops() if op.collective] == [30, 30]


def test_a_hidden_wait_is_found_by_the_kernel_that_ended_it():
    made = Made()
    made.step(0, 0, 9000)
    made.op("aten::mul", 10, 20)
    made.launch(15, 5, "long", 30, 5000)
    made.op("aten::next", 5045, 20)
    made.launch(5050, 5, "k", 5060, 5)
    ops = [t.op for t in _program(made).ops]
    assert ops[1].name == "hidden wait"
    assert ops[1].waits == (Wait(HOST, 0),)
    assert ops[2].overhead_us.t1 < 50
