"""Pauses that a program makes on purpose."""

from __future__ import annotations

from stepsight.trace.step.host_times import samples_of
from stepsight.trace.step.job import rank_program
from stepsight.trace.step.pauses import sleeps
from stepsight.trace.step.program import StepProgram
from tests.trace.making import Made, made_run


def steps_with_gaps(gaps: list[float]) -> list[StepProgram]:
    made, at = Made(), 0.0
    for number, gap in enumerate(gaps):
        made.step(number, at, gap + 100)
        made.op("aten::mul", at + 5, 20)
        made.launch(at + 10, 5, "mul", at + 30, 5)
        made.op("aten::add", at + 25 + gap, 20)
        made.launch(at + 30 + gap, 5, "add", at + 40 + gap, 5)
        at += gap + 150
    run = made_run(made)
    return [rank_program(run, run.ranks[0], i) for i in range(len(gaps))]


def test_a_gap_of_the_same_length_in_every_step_is_a_sleep():
    found = sleeps(steps_with_gaps([20_100.0, 20_150.0, 20_120.0]))
    assert [(place.name, place.before) for place in found] == [("aten::add", "aten::mul")]
    assert list(found.values()) == [20_100.0]


def test_gaps_that_differ_are_the_hosts_own():
    assert sleeps(steps_with_gaps([20_000.0, 23_000.0, 21_000.0])) == {}


def test_one_step_cannot_tell():
    assert sleeps(steps_with_gaps([20_000.0])) == {}


def test_a_sleep_is_no_overhead():
    steps = steps_with_gaps([20_100.0, 20_150.0, 20_120.0])
    gaps = [s.times.t1 for s in samples_of(steps[1], sleeps(steps)) if s.name == "aten::add"]
    assert gaps == [50.0]
