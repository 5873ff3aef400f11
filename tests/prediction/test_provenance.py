"""Who answers for the GPU time of a traced step."""

from __future__ import annotations

import pytest

from stepsight.prediction.breakdown import TimedBy
from stepsight.program.job import Collective, Job, Kernel, Op, RankProgram, Sizing, world
from stepsight.program.observation import Observation, ObservedJob


def _job(*ops: tuple[Op, tuple[Observation, ...]]) -> ObservedJob:
    program = RankProgram(tuple(op for op, _ in ops), "rank 0")
    return ObservedJob(Job((program,), (0,), world(1)), (tuple(seen for _, seen in ops),))


def _op(*kernels: tuple[Sizing, Observation]) -> tuple[Op, tuple[Observation, ...]]:
    made = (Kernel.of("elementwise", sizing=s, elements=1, read_bytes=4, write_bytes=4) for s, _ in kernels)
    return Op("a", tuple(made)), tuple(seen for _, seen in kernels)


def test_shares_add_up_by_how_sizes_were_found():
    job = _job(
        _op((Sizing.STATED, Observation(50)), (Sizing.COUNTED, Observation(20))),
        _op((Sizing.UNKNOWN, Observation(10, opaque=True)), (Sizing.STATED, Observation(5, late_us=5))),
        (Op("c", (), Collective("all_reduce", 1e6)), (Observation(10),)),
    )
    shares = TimedBy.of(job)
    assert shares.known_sizes == pytest.approx(0.65)
    assert shares.guessed_sizes == pytest.approx(0.20)
    assert shares.trace == pytest.approx(0.15)
    assert "15 % by the trace's own durations" in shares.words()


def test_a_collective_of_unknown_size_keeps_the_traces_time():
    job = _job((Op("c", (), Collective("all_reduce", 0.0)), (Observation(10, opaque=True),)))
    assert TimedBy.of(job).trace == 1.0
