"""Who answers for the GPU time of a traced step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepsight.prediction.origin import TimedBy
from stepsight.program.job import Collective, Job, Kernel, Op, RankProgram, Sizing, world


def _job(*ops: Op) -> Job:
    return Job((RankProgram(ops, "rank 0"),), (0,), world(1))


def _kernel(time_us: float, sizing: Sizing, **changed) -> Kernel:
    kernel = Kernel.of("elementwise", sizing=sizing, elements=1, read_bytes=4, write_bytes=4)
    return replace(kernel, measured_us=time_us, **changed)


def test_shares_add_up_by_how_sizes_were_found():
    job = _job(
        Op("a", (_kernel(50, Sizing.STATED), _kernel(20, Sizing.COUNTED))),
        Op("b", (_kernel(10, Sizing.UNKNOWN, opaque=True), _kernel(5, Sizing.STATED, late_us=5.0))),
        Op("c", (), Collective("all_reduce", 1e6, measured_us=10.0)),
    )
    shares = TimedBy.of(job)
    assert shares.known_sizes == pytest.approx(0.65)
    assert shares.guessed_sizes == pytest.approx(0.20)
    assert shares.trace == pytest.approx(0.15)
    assert "15% by the trace's own durations" in shares.words()


def test_a_collective_of_guessed_size_is_guessed():
    job = _job(Op("c", (), Collective("all_reduce", 1e6, measured_us=10.0, size_spread=0.5)))
    assert TimedBy.of(job).guessed_sizes == 1.0
