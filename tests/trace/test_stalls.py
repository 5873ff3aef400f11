"""What of the host's time was waiting for room in the launch queue."""

from __future__ import annotations

import pytest

from stepsight.constants import area
from stepsight.trace.job import rank_program
from stepsight.trace.waits import held_calls
from tests.trace.making import Made, made_run

FULL_QUEUE = area("traces").whole("FULL_QUEUE")
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
    held = held_calls(far_ahead().linked())
    assert held == {i: pytest.approx(70.0) for i in range(FULL_QUEUE, QUEUED)}


def test_long_launch_calls_of_a_host_that_is_not_ahead_stay_the_hosts() -> None:
    made = Made()
    for i in range(QUEUED):
        made.launch(100.0 * i, 75.0 if i % 2 else 5.0, "mul", 100.0 * i + 80, 10.0)
    assert held_calls(made.linked()) == {}


def test_kernels_from_before_the_recording_fill_the_queue_too() -> None:
    made = Made()
    for i in range(QUEUED):
        made._add("kernel", "earlier", 1000.0 + i, 1.0, 7, 0, stream=7, correlation=100_000 + i, device=0)
    for i, length in enumerate((5.0, 5.0, 95.0)):
        made.launch(10.0 + 10 * i, length, "mul", 5000.0 + 10 * i, 10.0)
    assert held_calls(made.linked()) == {2: pytest.approx(90.0)}


def test_waiting_for_room_is_not_counted_into_t4() -> None:
    run = made_run(far_ahead())
    program = rank_program(run, run.ranks[0], 0)
    assert {t.op.overhead_us.t4 for t in program.ops if t.op.overhead_us} == {5.0}
