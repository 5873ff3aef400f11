"""How a pass's hosts and its device share its time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsight.prediction.llm.piece_times import host_delay_us, overlap_exponent

TIMES = st.floats(0.0, 1e7)


def test_a_single_host_has_its_launches_queued() -> None:
    alone = overlap_exponent(1)
    assert host_delay_us(80.0, 100.0, alone) == 0.0
    assert host_delay_us(130.0, 100.0, alone) == pytest.approx(30.0)


def test_more_hosts_that_meet_at_collectives_hide_less() -> None:
    late = [host_delay_us(100.0, 100.0, overlap_exponent(hosts)) for hosts in (1, 2, 4, 8)]
    assert late == sorted(late) and late[-1] == pytest.approx(18.0)


def test_a_host_far_from_the_device_counts_alone() -> None:
    assert host_delay_us(10.0, 1000.0, overlap_exponent(8)) == pytest.approx(0.0, abs=0.1)
    assert host_delay_us(1000.0, 10.0, overlap_exponent(8)) == pytest.approx(990.0, abs=0.1)


@given(TIMES, TIMES, st.sampled_from([1, 2, 4, 8, 64, 1024, 2**20]))
def test_a_pass_takes_at_least_the_longer_and_at_most_both(host: float, busy: float, hosts: int) -> None:
    total = busy + host_delay_us(host, busy, overlap_exponent(hosts))
    assert max(host, busy) * (1 - 1e-9) <= total <= (host + busy) * (1 + 1e-9) + 1e-9


def test_exponents_fall_with_every_doubling() -> None:
    assert (
        overlap_exponent(1)
        == math.inf
        > overlap_exponent(2)
        > overlap_exponent(4)
        > overlap_exponent(512)
        > 1
    )
