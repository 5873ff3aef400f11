"""Live rows with the machine's pace beside them."""

import pytest

from stepsight.calibrate.journal import Journal
from stepsight.validate.live.steps import MEASURED, PREDICTED, rows_of
from stepsight.validate.live.topic import scores


def journal(tmp_path, paces):
    kept = Journal(tmp_path, resume=True)
    for i, pace in enumerate(paces):
        kept.add(PREDICTED, [{"name": f"d{i}", "kind": "DLRM", "predicted_us": 1000.0, "naive_us": 900.0}])
        steps = [[1000.0 * pace] * 3]
        kept.add(
            MEASURED,
            [{"name": f"d{i}", "pass": n, "pace_us": 50.0 * pace, "steps_us": steps} for n in (0, 1)],
        )
    return kept


def test_a_slow_minute_is_told_from_a_wrong_prediction(tmp_path):
    rows = rows_of(journal(tmp_path, (1.0, 1.25)), calibrated_pace_us=50.0)
    assert [r.pace for r in rows] == pytest.approx([1.0, 1.25])
    assert rows[1].error == pytest.approx(-0.2)
    assert rows[1].paced_error == pytest.approx(0.0, abs=1e-9)
    raw, paced = scores(rows)
    assert paced.gmae < raw.gmae
    assert "pace" in paced.name


def test_without_a_calibrated_pace_the_middle_of_the_run_serves(tmp_path):
    rows = rows_of(journal(tmp_path, (0.9, 1.0, 1.1)))
    assert [r.pace for r in rows] == pytest.approx([0.9, 1.0, 1.1])
