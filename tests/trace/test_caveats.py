"""What a prediction says of the trace it came from."""

from __future__ import annotations

from stepsight.prediction.traced.predict import predict_trace
from stepsight.trace.run import load_trace
from tests.trace.making import Made, made_run, two_step_training


def _notes(made: Made, **how: bool) -> str:
    return " ".join(predict_trace(made_run(made), models_only=True, **how).notes)


def test_sizes_that_were_guessed_are_named_with_their_share():
    made = two_step_training()  # its backward records no shapes: one kernel of three
    assert "33 % of the GPU time has no recorded sizes" in _notes(made)


def test_a_recording_that_began_within_its_only_step_says_so():
    made = Made()
    made.op("aten::relu", 100, 50, [[64, 64]])
    made.launch(110, 5, "vectorized_elementwise_kernel<4, relu>", 400, 100)
    assert "launched before the recording" not in _notes(made)
    made._add("kernel", "earlier", 100, 300, 7, 0, stream=7, correlation=1)
    assert "75 % of the GPU time was launched before the recording began" in _notes(made)


def test_a_lost_launch_within_a_step_is_no_earlier_work():
    made = Made()
    for at in (100.0, 400.0):
        made.op("aten::relu", at, 50, [[64, 64]])
        made.launch(at + 10, 5, "vectorized_elementwise_kernel<4, relu>", at + 20, 100)
    made._add("kernel", "its call was lost", 230, 150, 7, 0, stream=7, correlation=1)
    assert "launched before the recording" not in _notes(made)


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
