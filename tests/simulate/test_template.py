"""A template filled with a job's own times is that job."""

import numpy as np
import pytest

from stepsight.platform.load import load_platform
from stepsight.program.job import COMM, COMPUTE, Collective, Job, Kernel, Op, RankProgram, Wait
from stepsight.simulate.price import price
from stepsight.simulate.template import END, Slot, StepTemplate
from stepsight.simulate.timeline import simulate


def job(size: float = 1e6) -> Job:
    def pointwise(elements: float) -> Kernel:
        return Kernel.of("elementwise", elements=elements, read_bytes=4 * elements, write_bytes=4 * elements)

    ops = (
        Op("aten::add", (pointwise(size),)),
        Op("c10d::allreduce_", collective=Collective("all_reduce", 4e6), waits=(Wait(COMM, COMPUTE),)),
        Op("aten::mul", (pointwise(3e6),)),
        Op("aten::relu", (pointwise(1e5),), waits=(Wait(COMPUTE, 1),)),
    )
    return Job.replicated(RankProgram(ops), 4)


@pytest.fixture(scope="module")
def platform():
    return load_platform("4xA100-SXM4-40G", ["contention.compute_under_comm=1.0"])


def test_own_times_give_the_jobs_own_step(platform):
    template = StepTemplate(job(), platform, {"first": Slot(0)})
    own = price(job(), platform).lanes[0].times.device_us[0, 0, 0]
    step = template.step_us({"first": np.full((2, 4), own)})
    assert step == pytest.approx([simulate(job(), platform).step_us] * 2, rel=1e-3)


def test_another_time_gives_the_step_of_the_job_that_takes_it(platform):
    template = StepTemplate(job(), platform, {"first": Slot(0)})
    other = price(job(5e7), platform).lanes[0].times.device_us[0, 0, 0]
    assert template.step_us({"first": np.full((1, 4), other)})[0] == pytest.approx(
        simulate(job(5e7), platform).step_us, rel=1e-3
    )


def test_one_slow_rank_delays_all_and_added_time_comes_on_top(platform):
    template = StepTemplate(job(), platform, {"first": Slot(0), "absent": Slot(None)})
    even = np.full((1, 4), 1000.0)
    slow = even.copy()
    slow[0, 2] += 500.0
    base = template.step_us({"first": even})[0]
    assert template.step_us({"first": slow})[0] == pytest.approx(base + 500.0, rel=1e-6)
    assert template.step_us({"first": even}, {END: np.array([70.0])})[0] == pytest.approx(base + 70.0)
    assert not template.has("absent")
