"""What-if questions as a user types them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.prediction.traced.predict import Basis, TracedStep
from stepsight.prediction.traced.whatif import changed
from stepsight.program.job import Collective, HostTimes, Job, Kernel, Op, RankProgram
from stepsight.program.observation import ObservedJob

OPS = (
    Op("aten::mm", (Kernel.of("gemm", batch=1, m=64, n=64, k=64),), overhead_us=HostTimes(1, 2, 3, 4, 5)),
    Op("aten::dropout", (Kernel.of("dropout", elements=64),)),
    Op("c10d::allreduce_", collective=Collective("all_reduce", 1e6), phase="backward"),
)


@pytest.fixture
def step() -> TracedStep:
    job = ObservedJob(Job.replicated(RankProgram(OPS), 4))
    machine = load_platform("8xV100-SXM2")
    return TracedStep(cast(Any, None), job, machine, machine, Basis.ANCHORED, (), 0.0)


def test_platform_questions_change_the_platform(step):
    assert changed(step, ["link=10"]).platform.spec.link.gbps == 10
    assert changed(step, ["gpu=H100-SXM"]).platform.spec.gpu.name == "H100-SXM-80G"


def test_job_questions_change_the_job(step):
    assert changed(step, ["ranks=8"]).job.job.ranks == 8
    assert not any(op.kernels for op in changed(step, ["drop=dropout"]).job.job.programs[0].ops[1:2])
    assert changed(step, ["batch=2"]).job.job.programs[0].ops[0].kernels[0].dim("m") == 128
    times = changed(step, ["no-host"]).job.job.programs[0].ops[0].overhead_us
    assert times is not None
    assert times.t2 == 0


def test_questions_add_up(step):
    both = changed(step, ["ranks=8", "link=10"])
    assert (both.job.job.ranks, both.platform.spec.link.gbps) == (8, 10)
    other = changed(step, ["gpu=H100-SXM", "link=10"]).platform.spec
    assert (other.gpu.name, other.link.gbps) == ("H100-SXM-80G", 10)


@pytest.mark.parametrize(
    ("question", "said"),
    [("lnk=10", "did you mean 'link'"), ("link", "needs a value"), ("link=fast", "not a number")],
)
def test_a_question_that_makes_no_sense_says_how_to_ask(step, question, said):
    with pytest.raises(InputError, match=said):
        changed(step, [question])
