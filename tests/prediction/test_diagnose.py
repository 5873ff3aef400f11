"""A measured step against its prediction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepsight import diagnose, load_platform, predict
from stepsight.errors import InputError
from stepsight.platform.conditions import Learned
from stepsight.prediction.diagnosis import FAST, SLOW, USUAL, longer_parts
from stepsight.prediction.measured import parse_figure, parse_log

DLRM, ON = "examples/dlrm.toml", "8xH100-SXM"


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("812ms", "time", 812e3), ("1.2 s", "time", 1.2e6), ("41.2k tokens/s", "tokens_per_s", 41.2e3),
        ("5,100 tokens/s/GPU", "tokens_per_s_per_gpu", 5100.0), ("38% MFU", "mfu", 0.38),
        ("210 TFLOP/s", "tflops_per_gpu", 210.0), ("3100 samples/s", "samples_per_s", 3100.0),
        ("2500 images/s/GPU", "samples_per_s_per_gpu", 2500.0), ("210 TFLOP/s/GPU", "tflops_per_gpu", 210.0),
        ("2.5 it/s", "time", 4e5), ("2.5 s/it", "time", 2.5e6), ("0.05 minutes", "time", 3e6),
        ("mfu 0.3", "mfu", 0.3), ("tgs 4,100", "tokens_per_s_per_gpu", 4100.0), ("150% MFU", "mfu", 1.5),
    ],
)  # fmt: skip
def test_a_figure_has_a_unit(text: str, kind: str, value: float) -> None:
    figure = parse_figure(text)
    assert (figure.kind, figure.value) == (kind, pytest.approx(value))


@pytest.mark.parametrize(
    ("line", "kind", "value"),
    [
        ("step: 120  loss: 7.2  memory: 46GiB(49%)  tps: 5,744  mfu: 33.6%", "tokens_per_s_per_gpu", 5744.0),
        ("iteration 9 | consumed samples: 25600 | elapsed time per iteration (ms): 2384.5", "time", 2384.5e3),
        ("loss 2.1 step_time: 0.812", "time", 812e3),
        ("train: 3.2it/s loss=2", "time", 1e6 / 3.2),
        ("epoch 3: 2500 images/s/gpu", "samples_per_s_per_gpu", 2500.0),
        ("loss 2.1, 1.25s/it", "time", 1.25e6), ("0.3 MFU", "mfu", 0.3),
        ("tgs (tokens/gpu/second)=4100", "tokens_per_s_per_gpu", 4100.0),
        ("mfu: 0.8%", "mfu", 0.008), ("41% MFU", "mfu", 0.41),
    ],
)  # fmt: skip
def test_a_log_line_states_a_figure(line: str, kind: str, value: float) -> None:
    figure = parse_log(line)
    assert (figure.kind, figure.value) == (kind, pytest.approx(value))


@pytest.mark.parametrize("text", ["fast", "12 parsecs", "-3ms", ""])
def test_what_is_no_figure_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_figure(text)


@pytest.mark.parametrize("text", ["150% MFU", "8.33ms", "3000k tokens/s", "410k tokens/s/gpu"])
def test_what_no_hardware_reaches_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="faster than the hardware's peak allows"):
        diagnose("llama3-8b", ON, text)


def test_a_step_as_predicted_has_no_fault() -> None:
    expected = predict(DLRM, ON).step_time_us
    found = diagnose(DLRM, ON, f"{1.02 * expected / 1e3}ms")
    assert found.verdict == USUAL
    assert 0.4 < found.percentile < 0.65


@pytest.mark.parametrize("each", [True, False])
def test_a_rate_that_counts_other_gpus_is_pointed_out(each: bool) -> None:
    rate = predict(DLRM, ON).throughput
    value, unit = (rate.samples_per_s_per_gpu, "") if each else (rate.samples_per_s, "/gpu")
    found = diagnose(DLRM, ON, f"{value} samples/s{unit}")
    assert found.verdict == (SLOW if each else FAST)
    assert found.notes[0].endswith("counts each GPU" if each else "counts all GPUs together")


def test_a_faster_step_asks_for_another_description() -> None:
    assert diagnose(DLRM, ON, "0.5ms").verdict == FAST


def test_a_slow_host_is_suspected_first_in_a_host_bound_job() -> None:
    slow = replace(load_platform(ON), learned=Learned(host=3.0))
    measured = predict(DLRM, slow).step_time_us
    found = diagnose(DLRM, ON, f"{measured / 1e3}ms")
    assert found.verdict == SLOW
    assert "slower host" in [s.name for s in found.suspects[:2]]
    assert found.suspects[0].step_us == pytest.approx(measured, rel=0.1)


def test_a_measured_wait_for_data_is_the_suspect() -> None:
    found = diagnose(DLRM, ON, "10ms", data="7.4ms")
    assert found.suspects[0].name == "data loader"


def test_another_measurement_tells_suspects_apart() -> None:
    slow = replace(load_platform(ON), learned=Learned(host=3.0))
    alone = predict(DLRM, slow).step_time_us
    from stepsight import load_workload

    twice = predict(load_workload(DLRM, ["batch=16384"]), slow).step_time_us
    found = diagnose(DLRM, ON, f"{alone}us", also=[(["batch=16384"], f"{twice}us")])
    assert found.suspects[0].name == "slower host"


def test_a_wait_for_data_is_a_time() -> None:
    with pytest.raises(InputError, match="is not a time"):
        diagnose(DLRM, ON, "7ms", data="40 samples/s")


def test_parts_of_a_trace_that_are_longer_come_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is replayed on the trace's own machine, whatever the platform is called."""
    measured, models = {"gemm": 9.0, "vector": 7.0, "copy": 1.0}, {"gemm": 8.0, "vector": 4.0, "copy": 2.0}

    def predicted(trace: object, on: object = None, *, replay: bool = False, **_: object) -> SimpleNamespace:
        assert (on is None) is replay
        return SimpleNamespace(breakdown_us=measured if replay else models)

    monkeypatch.setattr("stepsight.prediction.traced.predict.predict_trace", predicted)
    assert longer_parts([Path("trace")], load_platform(ON)) == (("vector", 3.0), ("gemm", 1.0))


def test_a_measurement_that_would_not_fit_is_not_proposed() -> None:
    """On one GPU the tables would take 97 of 82 GB."""
    found = diagnose("examples/dlrm_nvidia_large.toml", "8xH100-SXM", "9ms")
    assert found.suspects
    assert found.tell_apart is None or "parallel.ranks=1" not in found.tell_apart.assignments
