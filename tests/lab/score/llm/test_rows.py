"""How cases are predicted, and how a file of them is scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.datasets.folder import data_folder
from lab.datasets.llm.case import Case
from lab.datasets.llm.files import cases, file_of
from lab.score.llm.rows import Answer, Outcome, outcome, scored
from lab.score.llm.topic import BARS, file_scores, lines_of, plain_score
from stepsight.collectives.site import SiteBandwidth
from stepsight.errors import InputError
from stepsight.prediction.predict import predict
from stepsight.workload.files import parse_workload

MISSING = Answer(lacks="sizes")
SMALL = {
    "kind": "transformer", "family": "llama", "layers": 4, "hidden": 1024, "heads": 8, "vocab": 1024,
    "sequence": 512, "global_batch": 32, "parallel": {"data": 16, "zero": 1},
}  # fmt: skip
FIELDS = {
    "rows", "expressed", "timed", "mape", "gmae", "inside", "as_asked_mape", "as_asked_inside", "fits_right",
    "memory_mape",
}  # fmt: skip


def test_without_a_layout_the_first_that_fits_answers_and_the_interval_covers_more() -> None:
    layouts = tuple({"data": 16 // n, "tensor": n, "micro_batch": 2} for n in (1, 2))
    found = outcome(Case(SMALL, platform="2x8xH100-SXM-80G-400G", measured_ms=1.0, layouts=layouts))
    first, second = (
        outcome(Case({**SMALL, "parallel": one}, platform="2x8xH100-SXM-80G-400G", measured_ms=1.0))
        for one in layouts
    )
    assert found.full.step_ms == first.full.step_ms
    assert found.full.high_ms == max(first.full.high_ms, second.full.high_ms)


def rows() -> list[Outcome]:
    ran = Answer(110.0, 90.0, 120.0, 100.0, 10.0, 11.0, True)
    asked = Answer(150.0, 140.0, 160.0, 100.0, 10.0, 11.0, True)
    return [
        Outcome(Case({}, name="ran", measured_ms=100.0, measured_gb=10.0, allocated=True), ran, asked),
        Outcome(Case({}, name="slow", measured_ms=200.0, slow=True), ran, ran),
        Outcome(Case({}, name="crashed", crashed=True), Answer(fits=False), Answer(fits=False)),
        Outcome(Case(None, name="unknown", lacks="sizes"), MISSING, MISSING),
    ]


def test_a_file_is_scored_in_full_as_asked_and_without_slow_runs() -> None:
    found = scored("a", rows())
    assert (found.rows, found.expressed, found.timed, found.slow_rows) == (4, 3, 2, 1)
    assert found.mape == pytest.approx((0.1 + 0.45) / 2) and found.inside == 0.5
    assert found.not_slow_mape == pytest.approx(0.1) and found.not_slow_inside == 1.0
    assert found.as_asked_mape == pytest.approx((0.5 + 0.45) / 2) and found.as_asked_inside == 0.0
    assert found.fits_right == 1.0 and found.lacking == {"sizes": 1}
    assert found.memory_mape == pytest.approx(0.0) and found.memory_rows == 1
    assert set(plain_score(found)) >= FIELDS


def test_every_bar_is_a_line() -> None:
    """A bar that no line carries would be forgotten."""
    for name, bars in BARS.items():
        judged = [line for line in lines_of(scored(name, rows(), bars)) if line.met is not None]
        assert len(judged) == len(bars)


def test_as_asked_a_row_reads_what_a_user_gets() -> None:
    slow = SiteBandwidth(256e6, {"all_gather": {2: 1.0}, "reduce_scatter": {2: 1.0}}, axes=("data", "shard"))
    case = Case(SMALL, name="two nodes", platform="2x8xH100-SXM-400G", measured_ms=100.0, site=slow)
    found = outcome(case)
    user = predict(parse_workload(SMALL, "two nodes"), "2x8xH100-SXM-400G").step_time_us / 1e3
    assert found.asked.step_ms == pytest.approx(user, rel=0.06)  # composed, not walked
    assert found.full.step_ms > 1.2 * user


def test_a_layout_that_cannot_be_built_does_not_run() -> None:
    found = outcome(
        Case({**SMALL, "parallel": {"pipeline": 8}}, name="s", platform="8xH100-SXM-80G", crashed=True)
    )
    assert found.full.fits is False and not found.full.lacks


def test_files_that_are_absent_are_skipped(tmp_path: Path) -> None:
    assert file_scores(tmp_path) == []


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "bar"), [("gpt_a100_single_node", 0.15), ("llm_a100_layouts", 0.25), ("dgxc_llm", 0.25)]
)
def test_every_fortieth_row_stays_near_its_measurement(file: str, bar: float) -> None:
    try:
        found = cases(file_of(file), data_folder())
    except InputError as error:
        pytest.skip(str(error))
    error = scored(file, [outcome(case) for case in found[::40]]).mape
    assert error is not None and error < bar
