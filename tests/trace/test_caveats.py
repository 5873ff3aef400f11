"""What a prediction says of the trace it came from."""

from __future__ import annotations

from stepsight.trace.prediction import predict_trace
from stepsight.trace.run import load_trace
from tests.trace.making import Made, made_run, two_step_training


def _notes(made: Made, **how: bool) -> str:
    return " ".join(predict_trace(made_run(made), **how).notes)


def test_sizes_that_were_guessed_are_named_with_their_share():
    made = two_step_training()  # its backward records no shapes: one kernel of three
    assert "33% of the GPU time have no recorded sizes" in _notes(made)


def test_recorded_sizes_need_no_word():
    made = Made()
    for number in range(3):
        made.step(number, 1000.0 * number, 900)
        made.op("aten::mm", 1000.0 * number + 10, 100, [[64, 64], [64, 64]])
        made.launch(1000.0 * number + 20, 5, f"volta_sgemm_128x64_tn_{number}", 1000.0 * number + 30, 500)
    assert "no recorded sizes" not in _notes(made)


def test_a_replay_guesses_nothing():
    assert "no recorded sizes" not in _notes(two_step_training(), replay=True)


def test_kernels_that_begin_late_for_no_reason_are_told():
    made = Made()
    made.step(0, 0, 6000)
    for i in range(3):
        made.op("aten::mm", 2000.0 * i + 10, 100, [[64, 64], [64, 64]])
        made.launch(2000.0 * i + 20, 5, "volta_sgemm_128x64_tn", 2000.0 * i + 1500, 100)
    assert "kernels of rank 0 began 4.4 ms late" in _notes(made)


def test_notes_name_files_without_their_folders(tmp_path):
    content = two_step_training().content()
    (tmp_path / "cut.json").write_bytes(content[: len(content) * 3 // 4])
    run = load_trace(tmp_path)
    assert any(w.startswith("cut.json:") for w in run.warnings)
    assert not any(str(tmp_path) in w for w in run.warnings)
