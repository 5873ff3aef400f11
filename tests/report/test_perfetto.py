"""The Chrome trace: one process a rank, a track a stream, arrows with two ends, no overlaps."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsight.prediction.answer import Prediction
from stepsight.report import perfetto
from stepsight.report.perfetto import HOST_TRACK, STEP_TRACK, chrome_trace

from .predictions import uneven

NANOSECOND = 1e-3
HALVES = ("waiting", "transfer")


def events(prediction: Prediction) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(chrome_trace(prediction))["traceEvents"]
    return found


def slices(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [e for e in found if e["ph"] == "X"]


def names(found: list[dict[str, Any]], kind: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == kind}


def test_every_rank_is_a_process_with_its_number(dlrm: Prediction) -> None:
    processes = names(events(dlrm), "process_name")
    assert {pid: name for (pid, _), name in processes.items()} == {r: f"rank {r}" for r in range(4)}


def test_every_rank_has_a_track_for_the_step_the_host_and_each_stream(dlrm: Prediction) -> None:
    tracks = names(events(dlrm), "thread_name")
    for rank in range(4):
        assert {name for (pid, _), name in tracks.items() if pid == rank} == {
            "step", "host", "stream compute", "stream comm",
        }  # fmt: skip


def test_every_operator_and_every_launch_is_drawn_once(dlrm: Prediction) -> None:
    drawn = Counter((e["pid"], e["tid"] > HOST_TRACK) for e in slices(events(dlrm)) if e["cat"] not in HALVES)
    for rank in range(4):
        times = dlrm.timeline.rank(rank)
        assert drawn[rank, True] == len(times.start_us)
        assert drawn[rank, False] == len(times.program.ops) + 1


def test_every_arrow_has_its_two_ends_in_order(waiting: Prediction) -> None:
    ends: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in events(waiting):
        if event["ph"] in "sf":
            assert isinstance(event["id"], int)
            assert event["ph"] not in ends[event["id"]]
            ends[event["id"]][event["ph"]] = event
    assert ends
    for pair in ends.values():
        assert set(pair) == {"s", "f"}
        assert pair["s"]["ts"] <= pair["f"]["ts"]


def test_both_ends_of_an_arrow_lie_on_a_slice(waiting: Prediction) -> None:
    found = events(waiting)
    for event in (e for e in found if e["ph"] in "sf"):
        place = event["pid"], event["tid"]
        here = [s for s in slices(found) if (s["pid"], s["tid"]) == place]
        assert any(s["ts"] <= event["ts"] <= s["ts"] + s["dur"] for s in here)


def test_the_last_rank_points_at_those_that_waited(waiting: Prediction) -> None:
    meetings = [e for e in events(waiting) if e.get("cat") == "collective" and e["ph"] in "sf"]
    assert {e["pid"] for e in meetings if e["ph"] == "s"} == {3}
    assert {e["pid"] for e in meetings if e["ph"] == "f"} == {0, 1, 2}


def test_a_rank_that_waits_shows_it_inside_the_collective(waiting: Prediction) -> None:
    found = slices(events(waiting))
    waits = {e["pid"]: e for e in found if e["cat"] == "waiting"}
    assert set(waits) == {0, 1, 2}
    for rank, wait in waits.items():
        [outer] = [e for e in found if e["pid"] == rank and e["cat"] == "communication"]
        [transfer] = [e for e in found if e["pid"] == rank and e["cat"] == "transfer"]
        assert outer["ts"] == wait["ts"]
        assert wait["dur"] + transfer["dur"] == pytest.approx(outer["dur"])


def _check_times(prediction: Prediction) -> None:
    found = slices(events(prediction))
    steps = {e["pid"]: e["ts"] + e["dur"] for e in found if e["tid"] == STEP_TRACK}
    tracks = defaultdict(list)
    for event in found:
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert event["ts"] + event["dur"] <= steps[event["pid"]] + NANOSECOND
        if event["cat"] not in HALVES:
            tracks[event["pid"], event["tid"]].append(event)
    for on_track in tracks.values():
        on_track.sort(key=lambda e: (e["ts"], e["dur"]))
        for before, after in itertools.pairwise(on_track):
            assert round(1e3 * (before["ts"] + before["dur"])) <= round(1e3 * after["ts"])


def test_nothing_overlaps_on_a_track_and_all_lies_inside_the_step(dlrm: Prediction) -> None:
    _check_times(dlrm)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=8), st.booleans())
def test_times_hold_for_any_ranks_on_any_kind_of_host(sizes: list[int], synchronous: bool) -> None:
    _check_times(uneven(sizes, synchronous=synchronous))


def test_a_large_job_draws_the_ranks_that_differ_and_says_how_many_are_identical(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(perfetto, "MOST_RANKS", 4)
    found = json.loads(chrome_trace(uneven([512] * 15 + [8192])))
    assert found["otherData"]["ranks"] == 16
    assert found["otherData"]["ranks_drawn"] == 2
    assert set(names(found["traceEvents"], "process_name").values()) == {
        "rank 0 (14 more identical)",
        "rank 15",
    }


def test_ranks_can_be_chosen(dlrm: Prediction) -> None:
    found = json.loads(chrome_trace(dlrm, ranks=[2]))
    assert {e["pid"] for e in found["traceEvents"]} == {2}


def test_kernels_say_what_they_are_and_what_their_time_rests_on(dlrm: Prediction) -> None:
    [first, *_] = [e for e in slices(events(dlrm)) if e["cat"] == "gemm"]
    assert first["args"]["family"] == "gemm"
    assert {"m", "n", "k", "dtype", "op", "source"} <= set(first["args"])
