"""Anchored predictions: what was measured stays, what changes is scaled by the models."""

from __future__ import annotations

import json

import pytest

from stepsight.errors import InputError
from stepsight.prediction.traced.anchoring import PRODUCT, SHIPPED
from stepsight.prediction.traced.predict import predict_trace, traced_step
from stepsight.prediction.traced.whatif import changed
from tests.trace.making import Made, made_run, two_step_training


def _training(device: str = "Tesla V100-SXM2-16GB") -> Made:
    made = Made(device=device)
    for number in range(3):
        start = 1000.0 + 3000 * number
        made.step(number, start, 3000)
        made.op("aten::mm", start + 1, 60, [[4096, 1024], [1024, 1024]])
        made.launch(
            start + 10, 5, "volta_sgemm_128x64_nn", start + 20, 1500, grid=[8, 64, 1], block=[128, 1, 1]
        )
    return made


def test_on_its_own_gpu_an_anchored_step_takes_what_was_measured():
    answer = predict_trace(made_run(two_step_training()))
    assert answer.basis == "anchored"
    assert answer.step_time_us == pytest.approx(answer.measured_us, rel=0.02)
    assert answer.to_dict()["basis"] == "anchored"


def test_models_alone_are_said_so():
    answer = predict_trace(made_run(two_step_training()), models_only=True)
    assert answer.basis == "models"


def test_another_platform_has_the_traced_time_and_no_error():
    moved = predict_trace(made_run(_training()), "1xA100-SXM4-40G")
    assert moved.measured_us is None
    assert "measured_us" not in moved.to_dict()
    assert moved.to_dict()["traced_platform"] == "1xV100-SXM2-16G"
    assert moved.to_dict()["traced_us"] == pytest.approx(3000.0)
    assert any("on 1xV100-SXM2-16G" in note for note in moved.notes)


def test_another_gpu_s_host_is_in_doubt():
    step = traced_step(made_run(_training()))
    there = traced_step(made_run(_training()), "1xA100-SXM4-40G")
    assert there.host_spread > step.host_spread


def test_replay_elsewhere_is_refused():
    with pytest.raises(InputError, match="recorded on 1xV100"):
        predict_trace(made_run(_training()), "1xH100-SXM", replay=True)


def test_what_the_model_misses_here_is_expected_there_in_part():
    run = made_run(_training())
    step = traced_step(run)
    op, (here,) = next(step.job.ops())
    model_us = step.own.kernels.estimate([op.kernels[0]]).time_us[0]
    weight = SHIPPED[PRODUCT]
    assert here.correction == pytest.approx((1500 / model_us) ** weight, rel=0.02)
    _, (there,) = next(step.on(traced_step(run, "1xA100-SXM4-40G").platform).job.ops())
    assert there.measured_us is None
    assert there.correction == here.correction


def test_a_larger_batch_is_scaled_from_the_measured_time():
    step = traced_step(made_run(_training()))
    twice = changed(step, ["batch=2"])
    assert twice.measured_us is None
    assert twice.job.seen[0][0][0].correction == step.job.seen[0][0][0].correction
    assert twice.job.seen[0][0][0].measured_us is None


def test_a_gpu_outside_the_catalogue_is_predicted_on_itself():
    run = made_run(_training("NVIDIA GeForce Whatever"))
    answer = predict_trace(run)
    assert answer.step_time_us == pytest.approx(answer.measured_us, rel=0.02)
    assert any("not in the catalogue" in note for note in answer.notes)


def test_a_trace_without_a_gpus_name_says_what_it_assumes():
    answer = predict_trace(made_run(_training("")))
    assert any("V100-SXM2-16G is assumed" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("number", "sms", "relative"), [((9, 0), 104, "MI250"), ((9, 0), 120, "MI100"), ((9, 4), 304, "MI300X")]
)
def test_an_amd_gpu_without_a_name_is_known_by_its_architecture_and_size(tmp_path, number, sms, relative):
    document = json.loads(_training("AMD Radeon Graphics").content())
    document["deviceProperties"][0].update(numSms=sms, computeMajor=number[0], computeMinor=number[1])
    (tmp_path / "trace.json").write_text(json.dumps(document))
    notes = predict_trace(tmp_path).notes
    assert any(f"after {relative} by {sms} multiprocessors" in note for note in notes)
