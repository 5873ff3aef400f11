"""What calibrate writes, predict reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stepsight.calibrate.rehearsal import VALIDATION, random_dlrm, random_transformer
from stepsight.errors import InputError
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
    assert prediction.low_us < prediction.step_us < prediction.high_us
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
