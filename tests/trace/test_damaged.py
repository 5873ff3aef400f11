"""Profiler traces that were damaged on their way: repaired with a note, or refused with what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepsight.errors import InputError
from stepsight.prediction.traced.predict import predict_trace
from tests.trace.making import two_step_training


def profile(**changed: Any) -> dict[str, Any]:
    return {**json.loads(two_step_training().content()), **changed}


def predicted(folder: Path, document: dict[str, Any], **asked: Any):
    path = folder / "trace.json"
    path.write_text(json.dumps(document))
    return predict_trace(path, **asked)


def events_of(document: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["cat"] == category]


@pytest.mark.parametrize("sms", [-1, 0, "many", 1e9, True, [1], None])
def test_impossible_numbers_of_multiprocessors_are_not_used(tmp_path, sms):
    properties = [{"id": 0, "name": "NVIDIA Unheard-of", "numSms": sms, "computeMajor": 8, "computeMinor": 0}]
    answer = predicted(tmp_path, profile(deviceProperties=properties), models_only=True)
    usual = predicted(
        tmp_path, profile(deviceProperties=[{**properties[0], "numSms": 108}]), models_only=True
    )
    assert answer.step_us == pytest.approx(usual.step_us, rel=0.01)


def test_negative_durations_are_left_out_with_a_note(tmp_path):
    document = profile()
    for event in events_of(document, "cpu_op"):
        event["dur"] = -600
    answer = predicted(tmp_path, document)
    assert answer.step_us == pytest.approx(600, rel=0.01)
    assert any("9 events with impossible times were left out" in note for note in answer.notes)


def test_a_trace_whose_kernels_all_have_negative_durations_is_refused(tmp_path):
    document = profile()
    for event in events_of(document, "kernel"):
        event["dur"] = -600
    with pytest.raises(InputError, match="shows no work on a GPU"):
        predicted(tmp_path, document)


def test_events_that_are_listed_twice_count_once(tmp_path):
    once, document = predicted(tmp_path, profile()), profile()
    document["traceEvents"] *= 2
    twice = predicted(tmp_path, document)
    assert (twice.step_us, twice.measured_us) == (once.step_us, once.measured_us)
    assert any("listed twice" in note for note in twice.notes)


def test_a_trace_whose_events_all_begin_at_one_time_is_refused(tmp_path):
    document = profile()
    for event in document["traceEvents"]:
        event["ts"] = 100.0
    with pytest.raises(InputError, match="begin at the same time"):
        predicted(tmp_path, document)


def test_launches_of_any_name_launch_their_kernels(tmp_path):
    document = profile()
    for event in events_of(document, "cuda_runtime"):
        event["name"] = "myLaunch"
    assert predicted(tmp_path, document).step_us == pytest.approx(600, rel=0.01)


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"rank": 0, "world_size": 10**9}, "number of ranks is 1,000,000,000"),
        ({"rank": 10**9, "world_size": 2}, "number of ranks is 1,000,000,001"),
        ({"rank": -1, "world_size": 2}, "distributedInfo.rank: names rank -1"),
        ({"rank": 0, "pg_config": [{"pg_name": "0", "ranks": [0, 10**9]}]}, "number of ranks is"),
        ({"rank": 0, "pg_config": [{"pg_name": "0", "ranks": [0, -4]}]}, "names rank -4"),
    ],
)
def test_impossible_ranks_are_refused(tmp_path, info, said):
    with pytest.raises(InputError, match=said):
        predicted(tmp_path, profile(distributedInfo=info))


def test_a_collective_of_a_billion_ranks_is_refused(tmp_path):
    document = profile()
    for event in document["traceEvents"]:
        event["args"]["Group size"] = 10**9
    with pytest.raises(InputError, match="number of ranks is 1,000,000,000"):
        predicted(tmp_path, document)
