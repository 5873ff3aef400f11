"""Profiler traces that were damaged on their way: repaired with a note, or refused with what is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepsight.errors import InputError
from stepsight.prediction.traced.predict import predict_trace
from stepsight.trace.execution import read_execution_trace
from stepsight.trace.files import TraceFile
from stepsight.trace.kineto import read_kineto
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
    assert answer.step_time_us == pytest.approx(usual.step_time_us, rel=0.01)


@pytest.mark.parametrize("major", [{}, [], "8", None])
def test_a_compute_capability_that_is_no_number_is_not_read(tmp_path, major):
    properties = [{"id": 0, "name": "NVIDIA Unheard-of", "numSms": 108, "computeMajor": major}]
    assert predicted(tmp_path, profile(deviceProperties=properties)).step_time_us > 0


def test_negative_durations_are_left_out_with_a_note(tmp_path):
    document = profile()
    for event in events_of(document, "cpu_op"):
        event["dur"] = -600
    answer = predicted(tmp_path, document)
    assert answer.step_time_us == pytest.approx(600, rel=0.01)
    assert any("left out 9 events with impossible times" in note for note in answer.notes)


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
    assert (twice.step_time_us, twice.measured_us) == (once.step_time_us, once.measured_us)
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
    assert predicted(tmp_path, document).step_time_us == pytest.approx(600, rel=0.01)


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


def nodes() -> list[dict[str, Any]]:
    """The operators of the profile as an execution trace lists them."""
    listed = [
        ("aten::addmm", [[64], [256, 128], [128, 64]]),
        ("aten::relu", [[256, 64]]),
        ("MmBackward0", []),
    ]
    return [
        {
            "id": 10 + i, "name": name, "rf_id": i + 1, "parent": 1, "seq_id": i, "tid": 1,
            "input_shapes": shapes, "input_types": ["Tensor(float)"] * len(shapes), "inputs": [],
        }
        for i, (name, shapes) in enumerate(listed * 3)
    ]  # fmt: skip


def with_execution_trace(folder: Path, listed: list[Any], **changed: Any):
    """The answer for the profile without shapes, with an execution trace in its folder."""
    document = profile()
    for number, event in enumerate(events_of(document, "cpu_op")):
        event["args"] = {"Record function id": number + 1}
    (folder / "profile.json").write_text(json.dumps(document))
    (folder / "et.json").write_text(json.dumps({"schema": "1.0.1", "pid": 7, "nodes": listed, **changed}))
    return predict_trace(folder, models_only=True)


def known(answer) -> float:
    return answer.origin.timed_by.known_sizes


def test_an_execution_trace_gives_sizes(tmp_path):
    assert known(with_execution_trace(tmp_path, nodes())) > 0.6


@pytest.mark.parametrize(
    "change",
    [
        {"input_shapes": [[-1, 4]]},
        {"input_shapes": [[2**70]]},
        {"input_shapes": "x"},
        {"name": 7},
        {"tid": "main"},
        {"rf_id": 2**70},
        {"parent": -1},
    ],
    ids=str,
)
def test_damaged_nodes_of_an_execution_trace_cost_their_sizes_alone(tmp_path, change):
    listed = nodes()
    listed[0] = {**listed[0], **change}
    answer = with_execution_trace(tmp_path, listed)
    assert answer.step_time_us == pytest.approx(600, rel=0.3)


def test_nodes_that_are_listed_twice_count_once(tmp_path):
    once, twice = (with_execution_trace(tmp_path, nodes() * n) for n in (1, 2))
    assert twice.step_time_us == once.step_time_us


def test_an_execution_trace_of_another_process_is_not_used(tmp_path):
    assert known(with_execution_trace(tmp_path, nodes(), pid=10**9)) == 0.0


def test_odd_nodes_are_left_out_and_what_is_left_serves(tmp_path):
    assert known(with_execution_trace(tmp_path, [*nodes(), 7, None, "x", {"id": "a"}])) > 0.6


def test_very_many_operators_of_one_name_are_aligned_in_bounded_time(tmp_path):
    repeated = [{**node, "rf_id": -1, "name": "aten::relu", "id": i} for i, node in enumerate(nodes() * 3000)]
    assert with_execution_trace(tmp_path, repeated).step_time_us > 0


def test_a_chakra_file_is_named_and_changes_nothing(tmp_path):
    (tmp_path / "profile.json").write_text(json.dumps(profile()))
    alone = predict_trace(tmp_path)
    (tmp_path / "run.0.et").write_bytes(b"\x00" * 5000)
    both = predict_trace(tmp_path)
    assert both.step_time_us == alone.step_time_us
    assert any("Chakra" in note for note in both.notes)


def test_a_gzip_bomb_is_refused_within_its_limit(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 24)) * 40)
    with pytest.raises(InputError, match=r"unpack|expand|large"):
        predict_trace(path)


@pytest.mark.parametrize("module", ["kineto", "execution"])
def test_a_file_that_memory_does_not_hold_is_refused(tmp_path, monkeypatch, module):
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("msgspec.json.decode", full)
    file = TraceFile("trace.json", b'{"nodes": []}')
    with pytest.raises(InputError, match="does not fit into memory"):
        if module == "execution":
            read_execution_trace(file)
        else:
            monkeypatch.setattr("stepsight.trace.kineto._DECODER", SimpleNamespace(decode=full))
            read_kineto(file)
