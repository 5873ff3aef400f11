"""Two predictions are compared by what they do in a second where their steps do different work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepsight.capturing.step import CapturedStep, save_step
from stepsight.cli import cli
from stepsight.platform.load import load_platform
from stepsight.prediction.advice import advise
from stepsight.prediction.compare import compare
from stepsight.prediction.predict import CapturedOn, predict
from stepsight.prediction.traced.whatif import changed, work_ratio
from stepsight.program.job import Collective, Job, Kernel, Op, RankProgram
from stepsight.report.runs import comparison_sentence
from stepsight.workload.files import load_workload

GPT = {
    "kind": "transformer", "family": "gpt2", "layers": 2, "hidden": 512, "heads": 8, "vocab": 5000,
    "sequence": 256, "batch_per_rank": 8,
}  # fmt: skip
DLRM = Path(__file__).parents[2] / "examples" / "dlrm.toml"


def test_another_stack_by_default_is_pointed_out_with_the_setting_that_keeps_it() -> None:
    a, b = predict("llama3-8b", "8xH100-SXM"), predict("llama3-8b", "8xH100-SXM", set={"tp": 2})
    said = compare(a, b).other_stack
    assert said.endswith(f"--set-b recipe={a.setup.recipe} keeps A's")  # type: ignore[union-attr]
    kept = said.split("recipe=")[1].split()[0]
    same = compare(a, predict("llama3-8b", "8xH100-SXM", set={"tp": 2, "recipe": kept}))
    assert not same.other_stack and not compare(a, a).other_stack


def test_a_larger_batch_is_not_slower_because_its_step_is_longer() -> None:
    one, twice = predict(GPT, "2xV100-SXM2"), predict({**GPT, "batch_per_rank": 32}, "2xV100-SXM2")
    found = compare(one, twice)
    assert found.speedup < 1 < (found.throughput_ratio or 0) and found.work_ratio == 4
    said = comparison_sentence(found)
    assert said.startswith("A step of B does 64 samples, one of A 16: B trains ")
    assert "× faster than A (" in said and "tokens/s)" in said and "slower" not in said
    assert found.throughput_ratio == pytest.approx(
        (twice.throughput.tokens_per_s or 0) / (one.throughput.tokens_per_s or 1)
    )


def test_more_gpus_with_a_batch_each_do_more() -> None:
    found = compare(predict(GPT, "2xV100-SXM2"), predict(GPT, "4xV100-SXM2"))
    assert found.work_ratio == 2
    assert "one of A 16" in comparison_sentence(found)


def test_longer_sequences_are_more_tokens() -> None:
    found = compare(predict(GPT, "2xV100-SXM2"), predict({**GPT, "sequence": 512}, "2xV100-SXM2"))
    assert "8,192 tokens, one of A 4,096" in comparison_sentence(found)


def test_the_same_work_is_compared_by_its_step() -> None:
    found = compare(predict(DLRM, "4xV100-SXM2"), predict(DLRM, "4xA100-SXM4-40G"))
    assert found.same_work and found.throughput_ratio == pytest.approx(found.speedup)
    assert "B's step is" in comparison_sentence(found)


@pytest.fixture
def step(tmp_path: Path) -> Path:
    gemm = Kernel.of("gemm", "bf16", batch=1, m=4000, n=4000, k=4000)
    reduce = Op("c10d::allreduce_", collective=Collective("all_reduce", 1e6))
    program = RankProgram((Op("aten::mm", (gemm,)), reduce))
    save_step(CapturedStep("train.py", "H100-SXM-80G", Job.replicated(program, 2)), tmp_path / "step.json")
    return tmp_path / "step.json"


def test_a_what_if_of_the_batch_says_so(step: Path) -> None:
    done = CliRunner().invoke(
        cli, ["compare", str(step), "-p", "8xH100-SXM", "--what-if", "batch=2", "--json"]
    )
    found = json.loads(done.stdout)
    assert found["work_ratio"] == 2
    assert found["throughput_ratio"] == pytest.approx(2 * found["speedup"])


def test_ranks_keep_their_batch(step: Path) -> None:
    from stepsight.capturing.step import load_step

    captured = CapturedOn.of(load_step(step), load_platform("8xH100-SXM"))
    questions = ["ranks=8", "batch=0.5", "no-host"]
    after = changed(captured, questions)
    assert work_ratio(captured, after, questions) == 2
    said = comparison_sentence(
        compare(captured.predicted(), after.predicted(), work_ratio=work_ratio(captured, after, questions))
    )
    assert said.startswith("A step of B does 2× the samples of A's: B trains ")


def test_what_a_notebook_prints_is_short() -> None:
    platform = load_platform("8xH100-SXM")
    found = predict("examples/gpt2.toml", platform)
    for one in (
        platform,
        load_workload("gpt2"),
        compare(found, found),
        advise("examples/gpt2.toml", platform),
    ):
        assert len(repr(one)) < 250
