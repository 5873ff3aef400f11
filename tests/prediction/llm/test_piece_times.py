"""How a pass's hosts and its device share its time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsight.prediction.llm.piece_times import even_handed, lateness_us

TIMES = st.floats(0.0, 1e7)


def test_a_single_host_has_its_launches_queued() -> None:
    alone = even_handed(1)
    assert lateness_us(80.0, 100.0, alone) == 0.0
    assert lateness_us(130.0, 100.0, alone) == pytest.approx(30.0)


def test_more_hosts_that_meet_at_collectives_hide_less() -> None:
    late = [lateness_us(100.0, 100.0, even_handed(hosts)) for hosts in (1, 2, 4, 8)]
    assert late == sorted(late) and late[-1] == pytest.approx(18.0)


def test_a_host_far_from_the_device_counts_alone() -> None:
    assert lateness_us(10.0, 1000.0, even_handed(8)) == pytest.approx(0.0, abs=0.1)
    assert lateness_us(1000.0, 10.0, even_handed(8)) == pytest.approx(990.0, abs=0.1)


@given(TIMES, TIMES, st.sampled_from([1, 2, 4, 8, 64, 1024, 2**20]))
def test_a_pass_takes_at_least_the_longer_and_at_most_both(host: float, busy: float, hosts: int) -> None:
    total = busy + lateness_us(host, busy, even_handed(hosts))
    assert max(host, busy) * (1 - 1e-9) <= total <= (host + busy) * (1 + 1e-9) + 1e-9


def test_exponents_fall_with_every_doubling() -> None:
    assert even_handed(1) == math.inf > even_handed(2) > even_handed(4) > even_handed(512) > 1
