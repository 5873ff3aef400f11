"""Ranks without a trace: how late they came, and what a step takes with and without that."""

from __future__ import annotations

import pytest

from stepsight.constants import area
from stepsight.prediction.traced.predict import predict_trace, trace_job, traced_step
from stepsight.prediction.traced.whatif import changed
from stepsight.program.job import Collective, Group, Job, Op, RankProgram, world
from stepsight.program.observation import Observation, ObservedJob
from stepsight.trace.job import (
    Calls,
    collective_calls,
    host_delay_us,
    with_late_peers,
    without_late_peers,
)
from tests.trace.making import Made, made_run

C = area("traces")

Observed = tuple[Collective, Observation]


def call(us: float | None, size: float = 1e6, kind: str = "all_reduce", group: str = "world") -> Observed:
    return Collective(kind, size, group), Observation(us)


def calls_of(*calls: Observed) -> Calls:
    return collective_calls(observed((calls,), (0,), world(1)), 0)


def observed(programs, program_of_rank, groups) -> ObservedJob:
    made = tuple(RankProgram(tuple(Op("nccl", collective=c) for c, _ in calls)) for calls in programs)
    seen = tuple(tuple((o,) for _, o in calls) for calls in programs)
    return ObservedJob(Job(made, program_of_rank, groups), seen)


def late(job: ObservedJob, rank: int) -> list[float]:
    ops = job.of_program(job.job.program_of_rank[rank])
    return [seen[-1].late_us for op, seen in ops if op.collective]


def test_what_a_call_takes_far_beyond_the_shortest_of_its_size_is_waiting():
    steps = [calls_of(call(us), call(100.0)) for us in (150.0, 170.0, 400.0)]
    assert host_delay_us(steps) == {
        ("world", 0): pytest.approx(170.0 - C.TYPICAL_CALL * 100.0),
        ("world", 1): 0.0,
    }


def test_peers_that_are_late_every_time_are_told_by_the_longest_that_the_links_may_need():
    steps = [calls_of(call(us)) for us in (6900.0, 6700.0, 6800.0)]
    assert host_delay_us(steps) == {("world", 0): 0.0}
    found = host_delay_us(steps, lambda c: 100.0)
    assert found == {("world", 0): pytest.approx(6800.0 - C.TYPICAL_CALL * 100.0)}


def test_a_collective_of_unknown_size_says_nothing_of_its_links():
    steps = [calls_of(call(us, size=0.0)) for us in (100.0, 120.0)]
    assert host_delay_us(steps, lambda c: 1.0) == {("world", 0): 0.0}


def test_what_it_takes_a_little_longer_is_its_own():
    steps = [calls_of(call(us)) for us in (100.0, 120.0, 125.0)]
    assert host_delay_us(steps) == {("world", 0): 0.0}


def test_calls_of_other_sizes_say_nothing_of_each_other():
    steps = [calls_of(call(50.0, size=1e6), call(500.0, size=9e6))] * 2
    assert set(host_delay_us(steps).values()) == {0.0}


def test_a_call_without_a_time_is_left_alone():
    assert host_delay_us([calls_of(call(None))]) == {}


def test_only_groups_that_lack_a_rank_wait():
    groups = {**world(4), "pair": (Group("pair", (0, 1)), Group("pair", (2, 3)))}
    job = observed(((call(1.0, group="pair"), call(1.0)),) * 2, (0, 1, 0, 1), groups)
    seen = {("pair", 0): 30.0, ("world", 0): 40.0}
    told = with_late_peers(job, {0: seen, 1: seen})
    assert [late(told, rank) for rank in range(4)] == [[0.0, 40.0]] * 4
    assert late(without_late_peers(told), 0) == [0.0, 0.0]


def alone(*, waits_us: tuple[float, ...], world_size: int = 2) -> Made:
    """Steps of a kernel and two all_reduces of 100 µs; in the second rank 1 keeps rank 0 waiting. The host
    waits for the end."""
    made, at = Made(world=world_size), 1000.0
    for number, wait in enumerate(waits_us):
        length = 400.0 + wait
        made.step(number, at, length)
        made.op("aten::relu", at + 5, 40, [[256, 64]])
        made.launch(at + 10, 5, "vectorized_elementwise_kernel<4, relu>", at + 20, 100, grid=[4, 1, 1])
        for i, own in enumerate((100.0, 100.0 + wait)):
            began = at + 130 + 110 * i
            made.op("nccl:all_reduce", began - 20, 15, [[65536]])
            made.launch(began - 15, 5, "ncclKernel_AllReduce_RING_LL_Sum_float", began, own, stream=20)
        made.call("cudaDeviceSynchronize", at + 240, length - 242)
        at += length
    return made


def test_a_rank_recorded_alone_waits_as_it_did_in_its_other_steps():
    run = made_run(alone(waits_us=(5000.0, 5000.0, 5000.0)))
    assert late(trace_job(run, 1), 0) == [0.0, pytest.approx(5000.0, abs=20.0)]
    step = traced_step(run, models_only=True)
    assert any("5.0 ms late" in note for note in step.notes)
    on_time = changed(step, ["peers-on-time"])
    assert late(on_time.job, 0) == [0.0, 0.0]


def test_links_of_the_machine_tell_a_wait_of_every_step():
    made = alone(waits_us=(0.0, 0.0, 0.0))
    for event in made.events:
        if "AllReduce" in event["name"]:
            event["dur"] = 90.0  # 262 kB between two V100 take 40 µs at most
    run = made_run(made)
    assert late(traced_step(run, models_only=True).job, 0) == [0.0, 0.0]
    for event in made.events:
        if "AllReduce" in event["name"]:
            event["dur"] = 9000.0
    waits = late(traced_step(made_run(made), models_only=True).job, 0)
    assert all(8500.0 < us < 9000.0 for us in waits)


def test_the_predicted_step_holds_the_wait_and_the_explanation_names_it():
    waiting, in_time = (predict_trace(made_run(alone(waits_us=(us,) * 3))) for us in (5000.0, 0.0))
    assert waiting.step_time_us - in_time.step_time_us == pytest.approx(5000.0, rel=0.05)


def test_the_predicted_steps_own_times_are_not_looked_at():
    odd, even = (made_run(alone(waits_us=(50.0, us, 50.0))) for us in (9000.0, 50.0))
    assert late(trace_job(odd, 1), 0) == late(trace_job(even, 1), 0)


def test_replayed_collectives_hold_their_waiting_already():
    run = made_run(alone(waits_us=(500.0,) * 3))
    replayed = predict_trace(run, replay=True)
    assert replayed.step_time_us == pytest.approx(replayed.measured_us, rel=0.02)


def test_with_every_rank_recorded_nobody_is_late():
    run = made_run(alone(waits_us=(500.0,) * 3, world_size=1))
    assert late(trace_job(run, 1), 0) == [0.0, 0.0]
