"""Kernels find their launch call and operator."""

from __future__ import annotations

import pytest

from stepsight.trace.link import NO_OP
from tests.trace.making import AUTOGRAD, Made, two_step_training


def test_a_kernel_belongs_to_the_innermost_operator_around_its_launch():
    made = Made()
    made.op("aten::linear", 0, 100)
    made.op("aten::addmm", 10, 80)
    made.launch(20, 5, "gemm", 40, 10)
    linked = made.linked()
    assert [e.name for e in linked.chain(linked.launches[0].op)] == ["aten::addmm", "aten::linear"]


def test_operators_of_another_thread_do_not_matter():
    made = Made()
    made.op("MulBackward0", 0, 100, tid=AUTOGRAD)
    made.op("aten::mul", 0, 100)
    made.launch(20, 5, "k", 40, 10)
    linked = made.linked()
    assert linked.ops[linked.launches[0].op].name == "aten::mul"


def test_external_id_links_a_call_outside_any_range():
    made = Made()
    made.op("aten::mul", 0, 10, **{"External id": 55})
    made.launch(500, 5, "k", 540, 10)
    made.events[-2]["args"]["External id"] = 55
    linked = made.linked()
    assert linked.ops[linked.launches[0].op].name == "aten::mul"


def test_a_kernel_without_a_call_is_an_orphan():
    made = two_step_training()
    made._add("kernel", "early", 5, 2, 7, 0, stream=7, correlation=1)
    linked = made.linked()
    assert [e.name for e in linked.orphans] == ["early"]
    assert linked.link_rate == 1.0


def test_a_launch_in_no_operator_lowers_the_link_rate():
    made = Made()
    made.launch(20, 5, "k", 40, 10)
    linked = made.linked()
    assert linked.launches[0].op == NO_OP
    assert linked.link_rate == 0.0


def test_a_host_far_ahead_of_its_gpu_moves_no_clock():
    made = Made()
    for at in (0.0, 100.0, 200.0):
        made.op("aten::mul", at, 50)
        made.launch(at + 20, 5, "k", at + 3030, 4)
    made.call("cudaDeviceSynchronize", 260, 3000)
    assert made.linked().clock_shift_us == 0.0


def test_a_gpu_clock_that_runs_early_is_shifted():
    made = Made()
    made.op("aten::mul", 0, 50)
    made.launch(20, 5, "k", 10, 4)
    linked = made.linked()
    assert linked.clock_shift_us > 10
    assert linked.launches[0].gpu[0].ts >= 20


def test_a_graph_launch_carries_all_its_kernels():
    made = Made()
    number = made.launch(20, 5, "first", 40, 10, call="cudaGraphLaunch")
    made._add("kernel", "second", 50, 10, 7, 0, stream=7, correlation=number)
    assert [e.name for e in made.linked().launches[0].gpu] == ["first", "second"]


def test_one_bad_correlation_does_not_move_the_gpu_s_clock():
    made = Made()
    for i in range(10):
        made.op("aten::relu", 1000 * i, 100, [[64]])
        made.launch(1000 * i + 10, 5, "relu", 1000 * i + 30, 5)
    made.launch(9500, 5, "of another moment", 20, 5)
    linked = made.linked()
    assert linked.clock_shift_us == 0.0


def test_a_gpu_clock_that_runs_early_is_moved():
    made = Made()
    for i in range(10):
        made.op("aten::relu", 1000 * i, 100, [[64]])
        made.launch(1000 * i + 10, 5, "relu", 1000 * i - 490, 5)
    assert made.linked().clock_shift_us == pytest.approx(505.0)
