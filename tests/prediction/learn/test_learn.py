"""Runs teach the factors of a machine's parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from stepsight import learn, load_platform, predict
from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.platform.evidence import GEMM, HOST, NETWORK, PARTS
from stepsight.prediction.learn.lesson import validate_runs
from stepsight.prediction.learn.regression import Factors, Observed, elasticities
from stepsight.prediction.learn.regression import learn as regress
from stepsight.prediction.learn.response import JobFile, ask, load_any

PLATFORM = "2x8xH100-SXM-400G"
HEADER = "workload,parallel.tensor,parallel.zero,global_batch,parallel.micro_batch,step_ms\n"


class Sum:
    """A step that is the sum of its parts."""

    def __init__(self, **parts_us: float) -> None:
        self.parts_us = parts_us

    def steps_us(self, factors: Sequence[Factors]) -> FloatArray:
        return np.array([sum(us * one.get(p, 1.0) for p, us in self.parts_us.items()) for one in factors])


def observed(measured_us: float, **parts_us: float) -> Observed:
    return Observed.of(Sum(**parts_us), measured_us, 0.1)


def test_no_runs_leave_the_machine_as_it_is() -> None:
    found = regress([])
    assert all(abs(np.log(factor)) < 0.05 for factor in found.factors.values())
    assert all(found.evidence.matrix.diagonal() > 0)


def test_a_run_moves_what_it_is_sensitive_to() -> None:
    found = regress([observed(150.0, gemm=10.0, host=90.0)])
    assert found.factors[HOST] > 1.15
    assert found.factors[HOST] > found.factors[GEMM]
    assert abs(np.log(found.factors[NETWORK])) < abs(np.log(found.factors[HOST])) / 3


def test_runs_that_agree_find_the_factor_and_make_it_surer() -> None:
    few = regress([observed(104.0, gemm=80.0, host=20.0)])
    mixes = [(100.0 - 9.0 * i, 9.0 * i) for i in range(10)]
    many = regress([observed(1.3 * gemm + host, gemm=gemm, host=host) for gemm, host in mixes])
    assert many.factors[GEMM] == pytest.approx(1.3, abs=0.06)
    assert many.factors[HOST] == pytest.approx(1.0, abs=0.1)
    assert many.evidence.spread(GEMM) < few.evidence.spread(GEMM)
    assert many.evidence.unexplained < few.evidence.unexplained


def test_a_job_that_runs_resemble_is_known_and_another_keeps_its_interval() -> None:
    """Equal runs say how long such a job takes, less whether a part or the job is the reason."""
    many = regress([observed(130.0, gemm=100.0) for _ in range(10)])

    def known(job: Observed) -> tuple[float, float]:
        shift, spread = many.of_job(job)
        return np.exp(job.log_ratio({}) - job.log_ratio(many.factors) + shift), spread

    same, other = known(observed(100.0, gemm=100.0)), known(observed(100.0, network=100.0))
    assert same[0] == pytest.approx(1.3, abs=0.03)
    assert abs(other[0] - 1) < 0.1
    assert other[1] > 1.5 * same[1]


def test_two_parts_that_are_off_are_both_found() -> None:
    mixes = [(80.0, 20.0), (50.0, 50.0), (20.0, 80.0), (60.0, 40.0), (35.0, 65.0), (90.0, 10.0)]
    found = regress([observed(1.3 * gemm + 1.8 * host, gemm=gemm, host=host) for gemm, host in mixes])
    assert found.factors[GEMM] == pytest.approx(1.3, abs=0.1)
    assert found.factors[HOST] == pytest.approx(1.8, abs=0.3)


def test_the_part_that_becomes_the_bottleneck_is_found() -> None:
    """Where the device bounds the step, the host has no elasticity: only asking exactly shows it."""

    class Slower:
        def steps_us(self, factors: Sequence[Factors]) -> FloatArray:
            return np.array([max(100.0 * f.get(GEMM, 1.0), 70.0 * f.get(HOST, 1.0)) for f in factors])

    host_bound = [observed(us, host=100.0) for us in (199.0, 201.0, 203.0)]
    found = regress([*host_bound, Observed.of(Slower(), 140.0, 0.1)])
    assert found.factors[HOST] == pytest.approx(2.0, abs=0.15)
    assert found.factors[GEMM] < 1.05


def test_runs_that_contradict_each_other_widen_the_interval() -> None:
    agree = regress([observed(100.0, gemm=100.0) for _ in range(4)])
    apart = regress([observed(us, gemm=100.0) for us in (75.0, 90.0, 110.0, 130.0)])
    assert apart.evidence.unexplained > 1.5 * agree.evidence.unexplained


def test_a_run_far_from_all_others_is_named_and_left_out() -> None:
    runs = [observed(us, gemm=100.0) for us in (108.0, 112.0, 110.0, 900.0, 109.0)]
    found = regress(runs)
    assert found.left_out == (3,)
    assert found.factors[GEMM] < 1.15


def test_elasticities_of_a_sum_are_its_shares() -> None:
    slopes = elasticities(Sum(gemm=60.0, host=40.0), {})
    assert slopes[PARTS.index(GEMM)] == pytest.approx(0.6, abs=0.002)
    assert slopes[PARTS.index(HOST)] == pytest.approx(0.4, abs=0.002)


@pytest.mark.parametrize(
    ("workload", "platform", "part"),
    [("llama3-8b", PLATFORM, GEMM), ("examples/dlrm.toml", "8xH100-SXM", HOST)],
)
def test_a_response_agrees_with_a_platform_of_these_factors(workload: str, platform: str, part: str) -> None:
    """Asking the priced step and pricing the step anew give the same answer."""
    from dataclasses import replace

    from stepsight.platform.conditions import Learned

    on = load_platform(platform)
    job = load_any(workload)
    asked = ask(job, on)
    ratio = float(asked.response.steps_us([{part: 1.3}])[0]) / asked.step_us
    slow = (
        predict(job, replace(on, learned=Learned(**{part: 1.3}))).step_time_us / predict(job, on).step_time_us
    )
    assert ratio == pytest.approx(slow, rel=0.03)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs of a machine whose GEMMs take 1.3 times as long."""
    from dataclasses import replace

    from stepsight.platform.conditions import Learned

    slow = replace(load_platform(PLATFORM), learned=Learned(gemm=1.3))
    lines = [HEADER]
    for tensor, micro in ((1, 1), (2, 1), (4, 2), (8, 2), (2, 2)):
        fields = [f"parallel.tensor={tensor}", "parallel.zero=1", "global_batch=64"]
        job = load_any("llama3-8b", [*fields, f"parallel.micro_batch={micro}"])
        lines.append(f"llama3-8b,{tensor},1,64,{micro},{predict(job, slow).step_time_us / 1e3:.1f}\n")
    path = tmp_path / "runs.csv"
    path.write_text("".join(lines))
    return path


def test_a_learned_file_predicts_its_machine(runs: Path, tmp_path: Path) -> None:
    lesson = learn(runs, PLATFORM)
    assert lesson.learned.gemm > 1.15
    path = tmp_path / "mine.toml"
    path.write_text(lesson.text("mine"))
    job = load_any("llama3-8b", ["parallel.tensor=4", "parallel.zero=1", "global_batch=128"])
    plain, mine = predict(job, PLATFORM), predict(job, path)
    assert mine.platform == "mine"
    assert mine.step_time_us > 1.1 * plain.step_time_us
    assert mine.high_us / mine.low_us < plain.high_us / plain.low_us
    assert any("learned from 5 runs (runs.csv)" in note for note in mine.notes)


def test_a_run_that_was_learned_from_is_predicted_as_the_lesson_says(tmp_path: Path) -> None:
    """One job takes longer for a reason that its parts do not share: it and what resembles it are known."""
    lines, steps = [HEADER], []
    for tensor, slow in ((1, 1.0), (2, 1.0), (4, 1.0), (8, 1.12)):
        fields = [f"parallel.tensor={tensor}", "parallel.zero=1", "global_batch=64", "parallel.micro_batch=1"]
        steps.append(load_any("llama3-8b", fields))
        lines.append(
            f"llama3-8b,{tensor},1,64,1,{slow * predict(steps[-1], PLATFORM).step_time_us / 1e3:.1f}\n"
        )
    (tmp_path / "runs.csv").write_text("".join(lines))
    lesson = learn(tmp_path / "runs.csv", PLATFORM)
    (tmp_path / "mine.toml").write_text(lesson.text("mine"))
    mine = [predict(job, tmp_path / "mine.toml") for job in steps]
    for row, found in zip(lesson.rows, mine, strict=True):
        assert found.step_time_us == pytest.approx(row.after_us, rel=0.02)
        assert found.low_us / found.step_time_us == pytest.approx(row.low_us / row.after_us, rel=0.02)
    assert mine[3].step_time_us > 1.05 * predict(steps[3], PLATFORM).step_time_us
    assert mine[0].step_time_us < 1.03 * predict(steps[0], PLATFORM).step_time_us
    assert any("jobs like this ×" in note for note in mine[3].notes)


def test_runs_of_another_machine_are_doubted(runs: Path) -> None:
    assert not any("check that" in note for note in learn(runs, PLATFORM).notes)
    other = "2x8xB200"
    assert f"check that {other} is the" in learn(runs, other).notes[0]
    with pytest.raises(InputError, match="faster than the hardware's peak allows"):
        learn(runs, "2x8xA100-SXM4-80G")


def test_a_bad_job_of_a_learned_file_is_named(runs: Path, tmp_path: Path) -> None:
    text = learn(runs, PLATFORM).text("mine")
    path = tmp_path / "mine.toml"
    path.write_text(text.replace("spread = ", "spread = -", 1))
    with pytest.raises(InputError, match=r"learned_from.jobs\[0\]"):
        load_platform(path)


def test_runs_that_name_no_stack_look_like_one(tmp_path: Path) -> None:
    """Steps of InternEvo, whose rows do not say so: the file predicts other jobs in its recipe."""
    stack, layouts = "training.recipe=internevo", ((1, 1), (2, 1), (2, 2), (4, 2), (8, 1))
    lines, jobs = [HEADER], []
    for tensor, micro in layouts:
        fields = [f"parallel.tensor={tensor}", "parallel.zero=1", f"parallel.micro_batch={micro}"]
        jobs.append([*fields, "global_batch=64"])
        ran = predict(load_any("llama3-8b", [*jobs[-1], stack]), PLATFORM)
        lines.append(f"llama3-8b,{tensor},1,64,{micro},{ran.step_time_us / 1e3:.1f}\n")
    runs, mine = tmp_path / "runs.csv", tmp_path / "mine.toml"
    runs.write_text("".join(lines))
    lesson = learn(runs, PLATFORM)
    assert lesson.evidence.recipe == "internevo"
    assert "internevo" in lesson.notes[-1]
    mine.write_text(lesson.text("mine"))
    open_job, named = load_any("llama3-8b", jobs[2]), load_any("llama3-8b", [*jobs[2], stack])
    found = predict(open_job, mine)
    assert found.setup is not None
    assert found.setup.recipe == "internevo"
    assert found.step_time_us == pytest.approx(predict(named, PLATFORM).step_time_us, rel=0.05)
    assert found.step_time_us == pytest.approx(lesson.rows[2].after_us, rel=0.02)


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("others = 3", "learned_from.others"),
        ("others = [3]", r"learned_from.others\[0\]"),
        ("others = [{ recipe = 'nanotron', others = [] }]", r"learned_from.others\[0\]"),
        ("probability = 0.0", "learned_from.probability"),
        ("recipe = 'megatrn'", "learned_from.recipe"),
    ],
)
def test_a_bad_recipe_of_a_learned_file_is_named(tmp_path: Path, written: str, named: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"name = 'mine'\nbased_on = '8xH100-SXM'\n[learned_from]\nruns = 1\n{written}\n")
    with pytest.raises(InputError, match=named):
        predict(load_any("llama3-8b"), path)


def test_each_run_is_predicted_from_the_others(runs: Path) -> None:
    found = validate_runs(runs, PLATFORM, draws=2)
    assert found.mape_after < 0.5 * found.mape_before
    assert [p.runs for p in found.curve] == [0, 1, 2, 3]
    assert found.to_dict()["rows"][0]["name"].startswith("llama3-8b")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model_name,step_ms\nllama3-8b,1\n", "no column workload"),
        ("workload,time\nllama3-8b,1\n", "no measured column"),
        ("workload,step_ms\n", "holds no runs"),
        ("workload,step_ms\nllama3-8b,-3\n", "line 2: step_ms"),
        ("workload,step_ms\nllama3-8b,\n", "no measured figure"),
        ("workload,step_ms\nllama9,5\n", "line 2"),
        ("workload,step_ms,parallel.tensr\nllama3-8b,5,2\n", "tensr"),
        ("workload,step_s\nllama3-8b,0.00833\n", "line 2: step_s: is faster than the hardware's peak allows"),
        ("workload,step_time\nllama3-8b,950\n", "line 2: step_time: is '950'; write 950 ms"),
        ("workload,mfu\nllama3-8b,150%\n", "line 2: mfu"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        learn(path, PLATFORM)
    assert problem in str(error.value)


def test_files_of_spreadsheets_are_read(tmp_path: Path) -> None:
    """Semicolons, columns in any case, figures with units."""
    path = tmp_path / "runs.csv"
    path.write_text("Model;TP;Step_Time;MFU\nllama3-8b;2;1.3 s;\nllama3-8b;2;;33%\n")
    first, second = learn(path, PLATFORM).rows
    assert first.measured_us == 1.3e6
    assert second.measured_us == pytest.approx(second.before_us * predict_mfu() / 0.33, rel=0.01)


def predict_mfu() -> float:
    return predict(load_any("llama3-8b", ["tp=2"]), PLATFORM).throughput.mfu or 0.0


def test_a_fast_run_is_predicted_within_the_peak(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("workload,training.recipe,mfu\n" + "llama3-8b,torchtitan-2025,96%\n" * 3)
    lesson = learn(path, PLATFORM)
    (tmp_path / "mine.toml").write_text(lesson.text("mine"))
    job = load_any("llama3-8b", ["training.recipe=torchtitan-2025"])
    found = predict(job, tmp_path / "mine.toml").step_time_us
    assert lesson.rows[0].after_us == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize("column", ["tokens_per_s", "mfu", "tflops_per_gpu", "samples_per_s"])
def test_a_rate_means_a_step_time(tmp_path: Path, column: str) -> None:
    rates = predict(load_any("llama3-8b"), PLATFORM).throughput
    path = tmp_path / "runs.csv"
    path.write_text(f"workload,{column}\nllama3-8b,{getattr(rates, column)}\n")
    row = learn(path, PLATFORM).rows[0]
    assert row.measured_us == pytest.approx(row.before_us, rel=0.01)


def test_one_changed_setting_leaves_the_stack_as_it_is() -> None:
    """Eager attention alone selects plain PyTorch; as a change of a Megatron job it stays Megatron's."""
    job = JobFile("llama3-8b", ("parallel.tensor=4",))
    changed = job.changed("training.attention=eager")
    assert changed.assignments == (
        "parallel.tensor=4",
        "training.recipe=megatron-2025",
        "training.attention=eager",
    )
    assert job.changed("parallel.zero=1").assignments == ("parallel.tensor=4", "parallel.zero=1")


def test_runs_of_several_platforms_are_pointed_to_the_option(tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_text("workload,platform,step_ms\nllama3-8b,8xH100-SXM,1200\n")
    with pytest.raises(InputError, match="has a column platform; name it with --platform"):
        learn(runs, "8xH100-SXM")
