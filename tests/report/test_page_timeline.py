"""The timeline's data: every slice once while there is room, merged runs where there is not."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from stepsight import predict
from stepsight.prediction.answer import Prediction
from stepsight.report import timeline as page_timeline
from stepsight.report.ranks import identical_ranks
from stepsight.report.timeline import picture


def data(prediction: Prediction) -> dict[str, Any]:
    _, script = picture(prediction, identical_ranks(prediction.timeline))
    found: dict[str, Any] = json.loads(script.split('id="timeline-data">')[1].split("</script>")[0])
    return found


def busy_us(found: dict[str, Any], rank: int, track: int) -> float:
    chosen = found["ranks"][rank]["tracks"][track]
    share = np.array(chosen.get("busy", [100] * len(chosen["length"]))) / 100
    return float((np.array(chosen["length"]) * share).sum() * found["tick"])


def test_every_set_of_ranks_has_its_host_and_its_streams(waiting: Prediction) -> None:
    found = data(waiting)
    assert [rank["name"] for rank in found["ranks"]] == ["ranks 0, 2", "rank 1", "rank 3"]
    assert all([t["name"] for t in rank["tracks"]] == ["host", "compute", "comm"] for rank in found["ranks"])


def test_times_survive_the_packing(dlrm: Prediction) -> None:
    found, times = data(dlrm), dlrm.timeline.rank(0)
    track = found["ranks"][0]["tracks"][1]
    start = found["from"] + np.cumsum(track["start"]) * found["tick"]
    compute = times.lane.lane.tape.launch_stream == times.lane.lane.tape.streams.index("compute")
    expected = np.sort(times.start_us[compute] - dlrm.timeline.begin_us.min())
    assert start == pytest.approx(expected, abs=2 * found["tick"])


def test_a_slice_names_its_kernel_operator_and_source(dlrm: Prediction) -> None:
    found = data(dlrm)
    kinds = [[found["strings"][i] for i in kind] for kind in found["kinds"]]
    assert any(k[0] == "linear" and k[1] == "gemm" and "m=" in k[2] and k[3] and k[4] for k in kinds)


def test_waiting_is_part_of_a_collective(waiting: Prediction) -> None:
    found = data(waiting)
    first, *_, last = found["ranks"]
    assert first["tracks"][2]["wait"][0] > 0
    assert "wait" not in last["tracks"][2]


def test_merging_keeps_the_busy_time_and_says_how_many(
    dlrm: Prediction, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = data(dlrm)
    monkeypatch.setattr(page_timeline, "MOST_SLICES", 60)
    merged = data(dlrm)
    lengths = [len(t["start"]) for rank in merged["ranks"] for t in rank["tracks"]]
    assert sum(lengths) <= 60
    assert sum(merged["ranks"][0]["tracks"][1]["count"]) == len(full["ranks"][0]["tracks"][1]["start"])
    assert busy_us(merged, 0, 1) == pytest.approx(busy_us(full, 0, 1), rel=0.02)


def test_the_data_stays_within_its_bytes(dlrm: Prediction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_timeline, "MOST_BYTES", 1)
    assert data(dlrm)["ranks"]


def test_a_job_of_many_ranks_says_how_many_are_not_drawn(
    waiting: Prediction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_timeline, "MOST_SETS", 2)
    place, _ = picture(waiting, identical_ranks(waiting.timeline))
    assert "1 rank not drawn" in place or "2 ranks not drawn" in place


def test_the_stretch_that_is_left_out_is_marked() -> None:
    model = {"kind": "transformer", "family": "gpt", "layers": 8, "hidden": 1024, "heads": 16, "vocab": 32000}
    document = {**model, "sequence": 1024, "global_batch": 256, "parallel": {"pipeline": 8}}
    found = predict({**document, "training": {"framework": "megatron"}}, "8xH100-SXM")
    place, _ = picture(found, identical_ranks(found.timeline))
    first = data(found)["ranks"][0]
    begin, end, (words, *_) = first["skipped"]
    assert first["window"][0] < begin < end < first["window"][1]
    assert (
        words == f"{found.timeline.micro_batches_left_out} micro-batches that repeat those before, left out"
    )
    assert "micro-batches that repeat those before; all figures hold them." in place
