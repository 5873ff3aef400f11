"""Live rows with the machine's pace beside them."""

import numpy as np
import pytest

from stepsight.calibrate.build import _pooled
from stepsight.calibrate.journal import Journal
from stepsight.run.pace import followed
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
    """Twelve workloads in two groups, the second in a slow minute."""
    rows = rows_of(journal(tmp_path, (1.0, 1.25) * 6), calibrated_pace_us=50.0)
    assert [r.pace for r in rows] == pytest.approx([1.0, 1.25] * 6)
    assert rows[1].error == pytest.approx(-0.2)
    assert rows[1].paced_error == pytest.approx(0.0, abs=1e-9)
    raw, paced = scores(rows)
    assert paced.gmae < raw.gmae
    assert "pace" in paced.name


def test_without_a_calibrated_pace_the_middle_of_the_run_serves(tmp_path):
    rows = rows_of(journal(tmp_path, (0.9, 1.0, 1.1) * 6))
    assert [r.pace for r in rows] == pytest.approx([0.9, 1.0, 1.1] * 6)


def test_interleaved_workloads_share_one_pace(tmp_path):
    """A probe that was disturbed says nothing about the minute of the others, nor of its own workload."""
    rows = rows_of(journal(tmp_path, (1.0, 1.0, 1.0, 1.0, 2.0, 1.0)), calibrated_pace_us=50.0)
    assert [r.pace for r in rows] == pytest.approx([1.0] * 6)


def test_steps_that_ignore_the_probe_are_not_corrected(tmp_path):
    kept = Journal(tmp_path, resume=True)
    for i in range(20):
        kept.add(PREDICTED, [{"name": f"d{i}", "kind": "DLRM", "predicted_us": 1000.0, "naive_us": 900.0}])
        kept.add(
            MEASURED,
            [
                {"name": f"d{i}", "pass": n, "pace_us": 50.0 * (1 + n), "steps_us": [[1000.0] * 3]}
                for n in (0, 1)
            ],
        )
    assert all(abs(r.paced_error) < 0.01 for r in rows_of(kept, calibrated_pace_us=50.0))


def test_how_far_steps_follow_the_probe_is_learned_and_is_one_where_nothing_was_seen():
    rng = np.random.default_rng(0)
    pace = rng.normal(0, 0.2, 200)
    half = list(zip(pace, 0.5 * pace + rng.normal(0, 0.03, 200), strict=True))
    assert followed(half) == pytest.approx(0.5, abs=0.05)
    assert followed([]) == 1.0
    assert followed([(0.2, -0.5)] * 30) == 0.0


def test_rehearsals_of_a_slow_pass_are_brought_to_the_usual_pace():
    rows = [
        {"name": f"d{i}", "pass": n, "pace_us": 50.0 * slow, "steps_us": [[1000.0 * slow] * 4]}
        for i in range(10)
        for n, slow in ((0, 1.0), (1, 1.0), (2, 1.3))
    ]
    pooled = _pooled(rows)
    assert len(pooled) == 10
    assert np.ravel(pooled[0]["steps_us"]) == pytest.approx(1000.0, rel=0.02)
