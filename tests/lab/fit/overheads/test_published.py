"""The published studies of host overheads."""

from __future__ import annotations

import pytest

from lab.fit.overheads.published import Study, read_single
from stepsight.overheads.tables import Stat

STUDY = Study(
    gaps={"cnn": Stat(14.0, 1.0, 10000), "dlrm": Stat(9.0, 1.0, 100), "ncf": Stat(10.0, 1.0, 10)},
    inside={
        "aten::conv2d": {"cnn": Stat(120.0, 1.0, 5000)},
        "aten::linear": {
            "cnn": Stat(47.0, 1.0, 5000),
            "dlrm": Stat(40.0, 1.0, 100),
            "ncf": Stat(41.0, 1.0, 10),
        },
    },
)


def test_each_workload_has_one_vote_on_an_operator() -> None:
    assert STUDY.typical()["aten::linear"].t2.mean == 41.0


def test_a_gap_is_that_of_the_workloads_with_the_operator_by_its_share_in_them() -> None:
    assert STUDY.typical()["aten::conv2d"].t1.mean == 14.0
    assert STUDY.typical()["aten::linear"].t1.mean == pytest.approx((0.5 * 14 + 9 + 10) / 2.5)


def test_a_workload_left_out_says_nothing() -> None:
    told = STUDY.typical(without="cnn")
    assert "aten::conv2d" not in told
    assert told["aten::linear"].t2.mean == 40.5


def test_the_files_hold_what_they_held(measured_data) -> None:
    study = Study.read(measured_data / "overheads")
    assert len(study.gaps) == 7
    assert 30 < study.typical()["aten::linear"].t2.mean < 50
    single = read_single(measured_data / "overheads")
    assert single["AddmmBackward"].t5.mean == pytest.approx(44.7, abs=0.1)
    assert single["TBackward"].whole.mean == pytest.approx(14.0)
