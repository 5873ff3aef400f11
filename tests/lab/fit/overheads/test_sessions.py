"""Sessions at their own pace, joined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.fit.overheads.sessions import ProfiledSession, joined, newest_spelling, over
from stepsight.overheads.gather import Gathered, HostSample
from stepsight.overheads.tables import OpStats, Stat
from stepsight.program.job import HostTimes

OPS = {f"aten::op{i}": OpStats(Stat(10.0), Stat(20.0 + i), Stat(5.0), Stat(4.0)) for i in range(8)}


def session(host: str, factor: float = 1.0, recording_us: float = 1.0, names: int = 8) -> ProfiledSession:
    """A host that takes ``factor`` times as long as the reference does."""
    ops = {
        name: OpStats(*(getattr(o, part).scaled(factor) for part in ("t1", "t2", "t3", "t4")))
        for name, o in list(OPS.items())[:names]
    }
    return ProfiledSession(host, ops, {"cudaLaunchKernel": Stat(4.0 * factor)}, recording_us)


@given(st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_hosts_of_any_pace_agree_once_they_are_brought_to_one(slow: float, fast: float) -> None:
    together, _ = joined([session("a", slow), session("b", fast)], OPS)
    for name, stats in OPS.items():
        assert together.ops[name].t3.mean == pytest.approx(stats.t3.mean)
    assert together.calls["cudaLaunchKernel"].mean == pytest.approx(4.0)


def test_many_traces_of_one_host_have_one_vote() -> None:
    odd = [
        ProfiledSession("odd", {**session("odd").ops, "x": OpStats(whole=Stat(90.0))}, {}) for _ in range(9)
    ]
    plain = [
        ProfiledSession(host, {**session(host).ops, "x": OpStats(whole=Stat(10.0))}, {})
        for host in ("a", "b")
    ]
    together, _ = joined([*odd, *plain], OPS)
    assert together.ops["x"].whole.mean == 10.0


def test_the_less_recording_disturbed_a_host_the_more_its_pace_counts() -> None:
    _, even = joined([session("a", 0.5), session("b", 2.0)], OPS)
    _, disturbed = joined([session("a", 0.5), session("b", 2.0, recording_us=25.0)], OPS)
    assert even.inside == pytest.approx(1.0)
    assert disturbed.inside == pytest.approx(0.5, rel=0.1)


def test_a_trace_with_too_little_in_common_goes_at_its_hosts_pace() -> None:
    short = ProfiledSession("a", {**session("a", 2.0, names=2).ops, "x": OpStats(whole=Stat(30.0))}, {})
    together, _ = joined([session("a", 2.0), short], OPS)
    assert together.ops["x"].whole.mean == pytest.approx(15.0)


def test_a_host_with_too_little_in_common_has_no_vote() -> None:
    stranger = ProfiledSession("b", {"x": OpStats(whole=Stat(30.0))}, {})
    together, _ = joined([session("a"), stranger], OPS)
    assert "x" not in together.ops


def test_what_a_session_recorded_dearly_is_taken_out_in_full() -> None:
    gathered = Gathered()
    view = HostSample("aten::view", "", 0, HostTimes(1.0, 0.0, 0.0, 0.0, 25.0))
    gathered.add([view] * 5)
    gathered.add([HostSample("aten::mm", "", 1, HostTimes(1.0, 60.0, 15.0, 10.0, 0.0), 2)] * 5)
    made = ProfiledSession.of("host", gathered)
    assert made.recording_us == 25.0
    assert made.ops["aten::mm"].t2.mean == pytest.approx(60.0 - 2 * 25.0 * 60 / 75)


def test_spellings_of_one_operator_are_one() -> None:
    both = newest_spelling({"AddBackward": OpStats(t2=Stat(10.0)), "AddBackward0": OpStats(t2=Stat(30.0))})
    assert list(both) == ["AddBackward0"]
    assert both["AddBackward0"].t2.mean == 20.0


def test_what_one_table_lacks_the_other_fills_whatever_the_spelling() -> None:
    first = {"AddBackward": OpStats(t2=Stat(10.0))}
    second = {"AddBackward0": OpStats(t2=Stat(30.0), t3=Stat(5.0)), "x": OpStats(whole=Stat(1.0))}
    assert over(first, second) == {
        "AddBackward0": OpStats(t2=Stat(10.0), t3=Stat(5.0)),
        "x": OpStats(whole=Stat(1.0)),
    }
