"""Predicting and replaying a traced step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepsight.errors import InputError
from stepsight.prediction.traced.predict import INDIVIDUAL, TRACED, _name, predict_trace, trace_job
from stepsight.trace.platforms import guess_platform
from stepsight.trace.run import load_trace, measured_step_us
from tests.trace.making import Made, made_run, two_step_training


def test_replay_of_a_gpu_bound_run_gives_the_gpus_period():
    prediction = predict_trace(made_run(two_step_training(host_us=50, kernel_us=200)), replay=True)
    assert prediction.step_time_us == pytest.approx(600, rel=0.01)
    assert prediction.measured_us == pytest.approx(600)


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (("mine/0/trace.json", "mine/1/trace.json"), "mine"),
        (("mine/rank_0.pt.trace.json",), "mine"),
        (("mine/resnet50.json.gz",), "resnet50.json.gz"),
        (("llama_rank0.json", "llama_rank1.json"), "here"),
    ],
)
def test_an_answer_is_named_by_what_says_something(files, name):
    made = made_run(two_step_training(host_us=50, kernel_us=200))
    ranks = tuple(replace(made.ranks[0], linked=moved(made.ranks[0].linked, f"here/{f}")) for f in files)
    assert _name(replace(made, ranks=ranks)) == name


def moved(linked, path):
    return replace(linked, trace=replace(linked.trace, path=path))


def test_ranks_that_enter_apart_add_up_to_the_step():
    traces = []
    for rank, begins in enumerate((1000, 1700)):
        traces.append(Made(rank=rank, world=2))
        traces[-1].step(5, begins, 3000)
        for i in range(4):
            at = begins + 20 * i
            traces[-1].op("aten::relu", at, 18, [[256, 64]])
            traces[-1].launch(at + 5, 5, "vectorized_elementwise_kernel<4, relu>", 2000 + at + 200 * i, 200)
    p = predict_trace(made_run(*traces))
    assert len(p.ranks) == 2
    assert sum(p.breakdown_us.values()) == pytest.approx(p.step_time_us)
    assert [rank.step_us for rank in p.ranks] == pytest.approx([p.step_time_us] * 2)


def test_a_single_step_counts_from_the_end_of_the_step_before():
    made = Made()
    made._add("kernel", "of the step before", 900, 600, 7, 0, stream=7, correlation=1)
    made.step(5, 1000, 100)
    for i in range(4):
        made.op("aten::relu", 1000 + 20 * i, 18, [[256, 64]])
        made.launch(1005 + 20 * i, 5, "vectorized_elementwise_kernel<4, relu>", 1500 + 200 * i, 200)
    made.call("cudaDeviceSynchronize", 1100, 1205)
    run = made_run(made)
    assert measured_step_us(run) == pytest.approx(800)
    assert predict_trace(run).step_time_us == pytest.approx(800)
    assert predict_trace(run, replay=True).step_time_us == pytest.approx(800, rel=0.05)


def test_replay_of_a_host_bound_run_gives_the_hosts_pace():
    prediction = predict_trace(made_run(two_step_training(host_us=300, kernel_us=20)), replay=True)
    assert prediction.step_time_us == pytest.approx(900, rel=0.01)


def test_a_prediction_never_looks_at_the_traces_kernel_times():
    slow, fast = (made_run(two_step_training(host_us=300, kernel_us=k)) for k in (20, 200))
    assert predict_trace(slow).step_time_us == pytest.approx(predict_trace(fast).step_time_us, rel=1e-9)


def test_kernels_that_name_no_call_are_refused_with_their_reason():
    made = two_step_training()
    for event in made.events:
        if event["cat"] == "kernel":
            del event["args"]["correlation"]
    with pytest.raises(
        InputError, match=r"9 kernels and copies, none of which names a launch call.*correlation"
    ):
        predict_trace(made_run(made))


def test_a_cut_file_without_kernels_says_what_was_lost(tmp_path):
    made = two_step_training()
    made.events.sort(key=lambda e: e["cat"] == "kernel")  # as profilers write them: kernels come last
    path = made.save(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b'"cat": "kernel"') - 20])
    with pytest.raises(
        InputError, match=r"no work on a GPU \(made.json: cut or broken JSON.*whole file again"
    ):
        predict_trace(load_trace(tmp_path))


def test_a_step_on_its_own_machine_names_no_model():
    made = made_run(two_step_training())
    assert not [n for n in predict_trace(made).notes if "model of" in n or "measured on" in n]
    assert [n for n in predict_trace(made, models_only=True).notes if "measured on" in n]


def test_host_times_come_from_the_other_steps():
    made = two_step_training(host_us=300, kernel_us=20)
    shorter = [e for e in made.events if e["cat"] == "cpu_op" and e["name"] == "aten::relu"][1]
    shorter["dur"] -= 100
    run = made_run(made)
    own, others = (
        trace_job(run, 1, host_times=whose).job.programs[0].ops[1].overhead_us
        for whose in (TRACED, INDIVIDUAL)
    )
    assert others.t3 == pytest.approx(own.t3 + 100)


def test_the_platform_is_the_traces_own():
    assert guess_platform(made_run(two_step_training())) == "1xV100-SXM2-16G"


def test_missing_peers_are_stood_in_for_and_said_so():
    made = two_step_training()
    made.world = 4
    prediction = predict_trace(made_run(made))
    assert len(prediction.ranks) == 4
    assert any("stand-ins" in note for note in prediction.notes)


def test_a_named_platform_wins_over_the_traces_own():
    prediction = predict_trace(made_run(two_step_training()), "1xA100-SXM4-40G")
    assert prediction.platform == "1xA100-SXM4-40G"


def test_a_trace_without_gpu_work_says_what_to_record(tmp_path):
    made = Made()
    made.op("aten::add", 0, 10)
    with pytest.raises(InputError, match="CUDA"):
        predict_trace(load_trace(made.save(tmp_path)), "1xV100-SXM2")


def test_an_execution_trace_alone_has_no_times(tmp_path):
    (tmp_path / "et.json").write_text('{"schema": "1.0.1", "nodes": []}')
    with pytest.raises(InputError, match="no times"):
        load_trace(tmp_path)


@pytest.mark.data
def test_dlrm_on_eight_gpus_replays_within_two_percent(measured_data):
    prediction = predict_trace(measured_data / "traces" / "dlrm_8xV100" / "kineto", replay=True)
    assert prediction.step_time_us == pytest.approx(prediction.measured_us, rel=0.02)
