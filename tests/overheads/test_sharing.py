"""Host times for a workload from other workloads and other hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsight.overheads.gather import HostSample
from stepsight.overheads.sharing import HostPool, Pace, SharedTimes
from stepsight.program.job import HostTimes

OPS = [f"aten::op{i}" for i in range(20)]


def sample(name: str, t2: float, *, t1: float = 4.0, allocating: float = 0.0, before: str = "") -> HostSample:
    return HostSample(
        name, before, 1, HostTimes(t1, t2 + allocating, 2.0, 5.0, 0.0), allocating=part(t2=allocating)
    )


def part(t2: float = 0.0) -> HostTimes:
    return HostTimes(0.0, t2, 0.0, 0.0, 0.0)


def host(pace: float = 1.0, names: list[str] = OPS) -> HostPool:
    """A host on which operator i takes 10 + i µs to its first launch, times its pace."""
    return HostPool(
        [
            HostSample(n, "", 1, HostTimes(4 * pace, (10 + i) * pace, 2 * pace, 5 * pace, 0.0))
            for i, n in enumerate(names)
        ]
    )


def test_another_workload_of_the_host_answers_before_other_hosts() -> None:
    shared = SharedTimes([host()], HostPool([sample("aten::op3", 99.0)]))
    found = shared.of("aten::op3", "", 1)
    assert found is not None
    assert found.t2 == pytest.approx(99.0)


def test_hosts_are_brought_to_one_pace_before_they_are_joined() -> None:
    shared = SharedTimes([host(1.0), host(4.0, OPS[:15])])
    pace = shared.pace_of(host(8.0).samples)
    known, only_fast = (shared.at(pace).of(name, "", 1) for name in ("aten::op0", "aten::op19"))
    assert known is not None
    assert only_fast is not None
    assert known.t2 == pytest.approx(80.0, rel=0.02)
    assert only_fast.t2 == pytest.approx(8 * 29.0, rel=0.02)


@given(st.floats(0.1, 10.0))
def test_a_host_of_another_pace_takes_that_much_longer_everywhere(factor: float) -> None:
    shared = SharedTimes([host()])
    there = shared.at(shared.pace_of(host(factor).samples)).of("aten::op5", "", 1)
    assert there is not None
    assert there.t1 == pytest.approx(4 * factor, rel=0.05)
    assert there.t4 == pytest.approx(5 * factor, rel=0.05)


def test_an_unknown_operator_is_answered_by_its_class_never_by_zero() -> None:
    found = SharedTimes([host()]).of("aten::never_seen", "aten::op1", 1)
    assert found is not None
    assert 10.0 < found.t2 < 30.0


def test_with_nothing_known_there_is_no_answer() -> None:
    assert SharedTimes([]).of("aten::mul", "", 1) is None


def test_another_workloads_stall_is_not_ours() -> None:
    calls = [sample("aten::op3", 10.0 + 0.1 * i) for i in range(20)] + [sample("aten::op3", 9000.0)]
    found = SharedTimes([host()], HostPool(calls)).of("aten::op3", "", 1)
    assert found is not None
    assert found.t2 < 12.0


def test_allocations_are_shared_on_their_host_alone_and_in_full() -> None:
    calls = [sample("aten::cat", 10.0, allocating=8000.0 if i % 4 == 0 else 0.0) for i in range(20)]
    here = SharedTimes([host()], HostPool(calls)).of("aten::cat", "", 1)
    elsewhere = SharedTimes([HostPool(calls)]).of("aten::cat", "", 1)
    assert here is not None
    assert elsewhere is not None
    assert here.t2 == pytest.approx(2010.0)
    assert elsewhere.t2 == pytest.approx(10.0)


def test_the_operator_before_tells_like_calls_apart() -> None:
    calls = [sample("aten::op3", 10.0, before="aten::a"), sample("aten::op3", 50.0, before="aten::b")]
    found = SharedTimes([host()], HostPool(calls)).of("aten::op3", "aten::b", 1)
    assert found is not None
    assert found.t2 == pytest.approx(50.0)


def test_too_few_common_operators_leave_the_pace_alone() -> None:
    assert SharedTimes([host()]).pace_of([sample("aten::op1", 500.0)]) == Pace()
