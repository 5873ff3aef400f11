"""What of the host's time was waiting for the queue or the allocator."""

from __future__ import annotations

import pytest

from stepsight.trace.step.host_parts import FULL_QUEUE, Stalls
from stepsight.trace.step.job import rank_program
from tests.trace.making import Made, made_run

QUEUED = FULL_QUEUE + 40


def far_ahead() -> Made:
    """A host that has launched more than the queue holds before the first kernel begins."""
    made = Made()
    for i in range(QUEUED):
        full = i >= FULL_QUEUE
        made.op("aten::mul", 100.0 * i, 90.0)
        made.launch(100.0 * i + 10, 75.0 if full else 5.0, "mul", 200_000.0 + 150 * i, 149.0)
    return made


def test_a_launch_into_a_full_queue_keeps_only_its_usual_length() -> None:
    stalls = Stalls(far_ahead().linked())
    first_held = 100.0 * FULL_QUEUE + 10
    assert stalls.held_us(0.0, first_held) == 0.0
    assert stalls.held_us(first_held, first_held + 75.0) == pytest.approx(70.0)


def test_long_launch_calls_of_a_host_that_is_not_ahead_stay_the_hosts() -> None:
    made = Made()
    for i in range(QUEUED):
        made.launch(100.0 * i, 75.0 if i % 2 else 5.0, "mul", 100.0 * i + 80, 10.0)
    assert Stalls(made.linked()).held_us(0.0, 1e9) == 0.0


def test_kernels_from_before_the_recording_fill_the_queue_too() -> None:
    made = Made()
    for i in range(QUEUED):
        made._add("kernel", "earlier", 1000.0 + i, 1.0, 7, 0, stream=7, correlation=100_000 + i, device=0)
    for i, length in enumerate((5.0, 5.0, 95.0)):
        made.launch(10.0 + 10 * i, length, "mul", 5000.0 + 10 * i, 10.0)
    assert Stalls(made.linked()).held_us(0.0, 200.0) == pytest.approx(90.0)


def test_waiting_for_room_is_not_counted_into_t4() -> None:
    run = made_run(far_ahead())
    program = rank_program(run, run.ranks[0], 0)
    assert {t.op.overhead_us.t4 for t in program.ops if t.op.overhead_us} == {5.0}


def test_an_allocation_is_told_apart_from_the_operators_own_time() -> None:
    made = Made()
    made.op("aten::cat", 0.0, 1000.0)
    made.call("cudaMalloc", 50.0, 800.0)
    made.launch(900.0, 10.0, "cat", 1000.0, 10.0)
    run = made_run(made)
    program = rank_program(run, run.ranks[0], 0)
    assert program.ops[0].op.overhead_us is not None
    assert program.ops[0].op.overhead_us.t2 == pytest.approx(900.0)
    assert program.ops[0].allocating.t2 == pytest.approx(800.0)
