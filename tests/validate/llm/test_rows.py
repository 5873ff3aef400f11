"""How rows of measured training become cases, and how a file is scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsight.measured_data import data_folder
from stepsight.validate.llm import gpt, layouts, published, sweep
from stepsight.validate.llm.rows import Case, Outcome, outcome, scored
from stepsight.validate.llm.topic import file_scores
from stepsight.validate.steps import read_csv


def test_a_file_is_scored_by_its_timed_rows_and_by_what_fits() -> None:
    ran = Case("ran", {}, measured_ms=100.0)
    crashed = Case("crashed", {}, crashed=True)
    rows = [
        Outcome(ran, 110.0, 90.0, 120.0, 10.0, True),
        Outcome(crashed, fits=False),
        Outcome(Case("unknown", None, lacks="sizes"), lacks="sizes"),
    ]
    found = scored("a.csv", rows)
    assert (found.rows, found.expressed, found.timed) == (3, 2, 1)
    assert found.mape == pytest.approx(0.1) and found.inside == 1.0
    assert found.fits_right == 1.0 and found.lacking == {"sizes": 1}


def test_a_row_that_cannot_be_expressed_says_why() -> None:
    row = {
        "file": "nemo_megatron.csv", "model": "LLAMA3_70B", "gpus": "64", "gpu": "DGX-GB300",
        "task": "pretrain",
        "parallelism": "TP=1 PP=4", "precision": "NVFP4", "iter_time_ms": "4491.2", "micro_batch": "1",
        "global_batch": "256", "seq": "8192",
    }  # fmt: skip
    assert published.case(row).lacks == "fp4 products"


def test_a_layout_that_cannot_be_built_does_not_run() -> None:
    document = {
        "kind": "transformer", "family": "llama", "layers": 4, "hidden": 512, "heads": 8, "vocab": 1024,
        "sequence": 128, "global_batch": 8, "training": {"framework": "nanotron"},
        "parallel": {"pipeline": 8},
    }  # fmt: skip
    found = outcome(Case("too many stages", document, "8xH100-SXM-80G", crashed=True))
    assert found.fits is False and not found.lacks


def test_files_that_are_absent_are_skipped(tmp_path: Path) -> None:
    assert file_scores(tmp_path) == []


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "read", "bar"),
    [(gpt.SINGLE, gpt.case, 0.12), (layouts.FILE, layouts.case, 0.16), (sweep.FILE, sweep.case, 0.45)],
)
def test_every_fortieth_row_stays_near_its_measurement(file: str, read: object, bar: float) -> None:
    try:
        folder = data_folder(None) / "e2e"
    except Exception as error:
        pytest.skip(str(error))
    if not (folder / file).is_file():
        pytest.skip(f"{file} is not there")
    rows = [outcome(read(row)) for row in read_csv(folder / file)[::40]]  # type: ignore[operator]
    assert scored(file, rows).mape < bar
