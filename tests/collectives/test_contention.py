"""What compute and communication do to each other."""

from __future__ import annotations

from stepsight.platform.conditions import contention_of

from .platforms import platform


def test_overlap_costs_both_sides_and_says_where_that_was_seen():
    nvlink = contention_of(platform())
    assert nvlink.compute_under_comm > 1 and nvlink.comm_under_compute > 1 and "traces" in nvlink.source
    assert "assumed" in contention_of(platform("L4", link="pcie", gbps=24)).source


def test_a_single_gpu_has_nothing_to_contend_with():
    assert contention_of(platform(gpus=1)).comm_under_compute == 1
