"""What calibrate writes, predict reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stepsight.calibrate.draws import VALIDATION, random_dlrm, random_transformer
from stepsight.calibrate.folder import cpu_spec, cuda_spec
from stepsight.errors import InputError
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.measured import MeasuredProcessor
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.workload.files import parse_workload


@pytest.mark.parametrize(
    "document",
    [random_dlrm(2, 3, VALIDATION), random_transformer(2, 3, VALIDATION, "bert")],
    ids=lambda d: d["kind"],
)
def test_a_calibrated_folder_predicts_through_the_ordinary_path(
    calibrated: Path, document: dict[str, Any]
) -> None:
    prediction = predict(parse_workload(dict(document), document["name"]), load_platform(calibrated))
    assert prediction.platform == "synthetic"
    assert prediction.low_us < prediction.step_time_us < prediction.high_us
    assert prediction.coverage.without_model == ()


def test_a_cpu_is_described_as_a_device_whose_host_does_the_work(calibrated: Path) -> None:
    spec = load_platform(calibrated).spec
    assert spec.host.synchronous
    assert spec.ranks == 2
    assert spec.contention.comm_under_compute > 1


def test_the_folder_says_how_quiet_the_machine_was(calibrated: Path) -> None:
    notes = json.loads((calibrated / "calibration.json").read_text())
    assert notes["kernel_repeat_error"] < 0.02
    assert not notes["noisy"]
    assert notes["samples"]["kernels"] > 100


def test_a_damaged_folder_is_named(calibrated: Path, tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "platform.toml").write_text((calibrated / "platform.toml").read_text())
    (tmp_path / "kernels" / "measured.json").write_text("{}")
    with pytest.raises(InputError, match="calibrate the platform again"):
        _ = load_platform(tmp_path).kernels


def test_rehearsals_that_disagreed_widen_every_interval(calibrated: Path, tmp_path: Path) -> None:
    """A folder whose own steps were off by a factor of two must not promise ±12 %."""
    folder = tmp_path / "doubtful"
    shutil.copytree(calibrated, folder)
    notes = json.loads((folder / "calibration.json").read_text())
    notes["rehearsal_error"] = {"a": 0.7, "b": -0.7}
    (folder / "calibration.json").write_text(json.dumps(notes))
    document = random_dlrm(2, 3, VALIDATION)
    sure, doubtful = (
        predict(parse_workload(dict(document), "x"), load_platform(path)) for path in (calibrated, folder)
    )
    assert doubtful.high_us / doubtful.low_us > 4 > sure.high_us / sure.low_us


@pytest.mark.parametrize("figure", ["Infinity", "-1e200", "NaN", "1e5", '"x"', "null"])
@pytest.mark.parametrize("file", ["kernels/measured.json", "embedding.json"])
def test_an_impossible_figure_of_a_folder_is_refused(
    calibrated: Path, tmp_path: Path, file: str, figure: str
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(calibrated, folder)
    content = (folder / file).read_text()
    at = content.index('"weights": [') + len('"weights": [')
    end = content.index(",", at)
    (folder / file).write_text(content[:at] + figure + content[end:])
    document = random_dlrm(2, 3, VALIDATION)
    with pytest.raises(InputError, match=Path(file).name):
        predict(parse_workload(dict(document), document["name"]), load_platform(folder))


def test_a_gpu_keeps_its_data_sheet_and_has_the_memory_that_its_driver_states() -> None:
    spec, known = cuda_spec("NVIDIA A100-SXM4-40GB", 42.4e9), load_gpu("A100-SXM4-40G")
    assert (spec.sms, spec.peak_tflops, spec.launch_us) == (known.sms, known.peak_tflops, known.launch_us)
    assert spec.memory_gb == pytest.approx(42.4e9 / 2**30)  # data sheets count in these
    with pytest.raises(InputError, match="not in the catalogue"):
        cuda_spec("NVIDIA Unheard Of", 42.4e9)


def test_a_cpu_is_one_core_a_rank() -> None:
    spec = cpu_spec(MeasuredProcessor(gflops=12_000.0, memory_gbps=800.0), 2)
    assert (spec.architecture, spec.sms, spec.launch_us) == ("cpu", 1, 0.0)
