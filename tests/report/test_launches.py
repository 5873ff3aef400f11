"""What a report says about a launch."""

from __future__ import annotations

from stepsight.prediction.answer import Prediction
from stepsight.program.job import Collective, Kernel
from stepsight.report.perfetto import launches


def test_every_launch_has_its_operator_and_lies_within_it(dlrm: Prediction) -> None:
    times = dlrm.timeline.rank(1)
    made = launches(dlrm.timeline, times)
    op = times.lane.lane.tape.launch_op
    assert [times.program.ops[i] for i in op] == list(made.ops)
    assert (made.launch_us >= times.op_start_us[op]).all()
    assert (made.launch_us <= times.op_end_us[op]).all()


def test_no_kernel_starts_before_it_is_launched(waiting: Prediction) -> None:
    times = waiting.timeline.rank(3)
    assert (launches(waiting.timeline, times).launch_us <= times.start_us).all()


def test_a_launch_without_a_name_goes_by_its_kind() -> None:
    assert Kernel("gemm").label == "gemm"
    assert Kernel("gemm", operator="linear").label == "linear"
    assert Collective("all_reduce", 8.0).label == "all_reduce"
