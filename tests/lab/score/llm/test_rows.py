"""How rows of measured training become cases, and how a file is scored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.datasets.folder import data_folder
from lab.score.llm import gpt, layouts, published, sweep
from lab.score.llm.rows import Case, Outcome, outcome, scored
from lab.score.llm.topic import FILES, file_scores, lines_of
from lab.score.steps import read_csv
from stepsight.collectives.site import SiteBandwidth
from stepsight.prediction.predict import predict
from stepsight.workload.files import parse_workload


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


def test_every_bar_of_a_file_is_a_line() -> None:
    rows = [
        Outcome(Case("ran", {}, measured_ms=100.0, measured_gb=10.0), 110.0, memory_gb=11.0, fits=True),
        Outcome(Case("crashed", {}, crashed=True), fits=True),
    ]
    found = scored("a.csv", rows, 0.2, fits_bar=0.93, memory_bar=0.06)
    time, fits, memory = lines_of(found)
    assert (time.target, time.met) == ("MAPE ≤ 20%", True)
    assert (fits.target, fits.met, str(fits.figure)) == ("≥ 93%", False, "right 50.0%")
    assert (memory.target, memory.met, memory.rows) == ("MAPE ≤ 6%", False, 1)
    assert memory.mape == pytest.approx(0.1)


def test_every_bar_in_the_list_of_files_is_checked() -> None:
    """A bar that no line carries would be forgotten."""
    for file in FILES:
        case = Case("ran", {}, measured_ms=100.0, measured_gb=10.0)
        rows = [
            Outcome(case, 100.0, memory_gb=10.0, fits=True),
            Outcome(Case("c", {}, crashed=True), fits=False),
        ]
        bars = {"bar": file.bar, "fits_bar": file.fits_bar, "memory_bar": file.memory_bar}
        lines = lines_of(scored(file.name, rows, **bars))
        assert sum(line.met is not None for line in lines) == sum(bar is not None for bar in bars.values())


def test_without_the_figures_of_a_site_a_row_reads_what_a_user_gets() -> None:
    document = {
        "kind": "transformer", "family": "llama", "layers": 4, "hidden": 1024, "heads": 8, "vocab": 1024,
        "sequence": 512, "global_batch": 32, "training": {"framework": "nanotron"},
        "parallel": {"data": 16, "zero": 1},
    }  # fmt: skip
    slow = SiteBandwidth(256e6, {"all_gather": {2: 1.0}, "reduce_scatter": {2: 1.0}}, axes=("data", "shard"))
    case = Case("two nodes", document, "2x8xH100-SXM-400G", measured_ms=100.0, site=slow)
    with_site, without = outcome(case), outcome(replace(case, site=None))
    user = predict(parse_workload(document, "two nodes"), "2x8xH100-SXM-400G").step_us / 1e3
    assert with_site.without_site_ms == pytest.approx(user) == pytest.approx(without.shipped_ms)
    assert with_site.shipped_ms > 1.2 * user
    assert scored("a.csv", [with_site]).without_site_mape == pytest.approx(abs(user / 100.0 - 1))
    assert scored("a.csv", [without]).without_site_mape is None


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
