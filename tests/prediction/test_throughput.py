"""Rates in the field's units, and what would make a job fit."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import pytest

import stepsight
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.columns import product_flops
from stepsight.prediction.display import assumed
from stepsight.prediction.memory import MemoryLine, what_would_help
from stepsight.prediction.runnable import missing_units
from stepsight.prediction.throughput import job_flops, throughput
from stepsight.program.job import Job, Kernel, Op, Period, RankProgram, Sizing
from stepsight.program.observation import Observation
from stepsight.program.setup import Setup

EXAMPLES = Path(__file__).parents[2] / "examples"
GEMM = Kernel.of("gemm", "bf16", batch=1, m=1000, n=1000, k=1000)


def test_flops_of_products_are_counted_over_all_ranks() -> None:
    job = Job.replicated(RankProgram((Op("a", (GEMM,)), Op("b", (Kernel.of("elementwise"),)))), 4)
    assert job_flops(job) == {"bf16": pytest.approx(4 * 2e9)}


def test_what_runs_a_second_time_is_no_work_of_the_model() -> None:
    job = Job.replicated(RankProgram((Op("a", (GEMM,)), Op("b", (GEMM,), phase="recompute"))), 1)
    assert job_flops(job)["bf16"] == pytest.approx(2e9)


def test_micro_batches_that_are_not_listed_count() -> None:
    program = RankProgram((Op("a", (GEMM,)),) * 3, period=Period((0, 1, 2, 3), 5))
    assert job_flops(Job.replicated(program, 1))["bf16"] == pytest.approx(8 * 2e9)


def test_kernels_of_one_call_share_its_flops() -> None:
    """A convolution in a trace: two changes of layout around the product, one call."""
    job = Job.replicated(RankProgram((Op("a", (GEMM,) * 3),)), 1)
    seen = tuple(Observation(share=share) for share in (0.2, 0.7, 0.1))
    assert job_flops(job, ((seen,),))["bf16"] == pytest.approx(2e9)


def test_rates_follow_from_the_step_time() -> None:
    job = Job.replicated(RankProgram((Op("a", (GEMM,)),)), 2)
    setup = Setup(samples=8, tokens=1024, model_flops=4e12)
    rates = throughput(job, 2, 1e6, setup, stepsight.load_gpu("H100-SXM"))
    assert (rates.samples_per_s, rates.tokens_per_s, rates.tokens_per_s_per_gpu) == (8, 1024, 512)
    assert rates.tflops_per_gpu == pytest.approx(2.0)
    assert rates.mfu == pytest.approx(2.0 / 989.4)


def test_a_type_without_units_is_said() -> None:
    job = Job.replicated(RankProgram((Op("a", (GEMM,)),)), 1)
    assert "no bf16 tensor cores" in missing_units(job, stepsight.load_gpu("V100"))[0]
    assert missing_units(job, stepsight.load_gpu("H100-SXM")) == ()


def test_a_job_that_does_not_fit_says_what_would_help() -> None:
    import dataclasses

    fits = stepsight.predict(EXAMPLES / "gpt2.toml", "2xV100-SXM2")
    assert fits.fits is True
    full = dataclasses.replace(fits, memory=MemoryLine({"activations": 30e9, "parameters": 1e9}, 16e9))
    assert full.fits is False
    assert "a GPU with more memory: " in full.what_would_help[-1]


def test_where_no_gpu_is_large_enough_the_model_is_to_be_spread() -> None:
    spread = "no GPU of the catalogue has this much memory: spread the model over more GPUs"
    assert what_would_help(MemoryLine({"parameters": 1e12}, 80e9), None) == (spread,)
    assert "stepsight shard" in what_would_help(MemoryLine({"tables": 1e12}, 80e9), None)[0]


def test_a_batch_is_shared_by_replicas_not_by_ranks() -> None:
    split = Setup(samples=128, parallel=(("tensor", 8), ("pipeline", 8)))
    assert (split.replicas, split.shared_by) == (1, "per replica")
    alike = Setup(samples=128, parallel=(("data", 64), ("expert", 8)))
    assert (alike.replicas, alike.shared_by) == (64, "per rank")


def test_a_prediction_shows_itself_in_one_line_a_table_and_rows() -> None:
    found = stepsight.predict(EXAMPLES / "dlrm.toml", "4xV100-SXM2")
    assert len(repr(found)) < 160
    assert "where" not in repr(found)
    assert found.to_dict()["assumed"]["ranks"] == 4
    assert sum(row["share"] for row in found.rows()) == pytest.approx(1)
    assert "<table>" in found._repr_html_()
    assert found.to_dict()["step_time_us"] == found.step_time_us


def test_a_workload_may_be_a_dict() -> None:
    small = {
        "kind": "transformer", "family": "gpt2", "layers": 1, "hidden": 64, "heads": 4, "vocab": 100,
        "sequence": 16, "batch_per_rank": 2,
    }  # fmt: skip
    assert len(stepsight.predict(small, "2xA100-SXM4-40G").ranks) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("parallel.shard_group=8",), "FSDP, sharded over groups of 8"),
        (("training.recompute=3",), "3 layers of each stage run again"),
        (("training.adapters=true",), "only LoRA adapters trained"),
        (("training.offload=optimizer",), "optimizer on the CPU"),
        ((), "torch.compile"),
        (("training.master_weights=false",), "autocast"),
    ],
)
def test_what_was_assumed_names_what_changes_the_step(changes: tuple[str, ...], words: str) -> None:
    described = stepsight.load_workload(EXAMPLES / "llama3_8b_fsdp.toml", changes)
    assert words in assumed(stepsight.predict(described, "8x8xH100-SXM-400G"))


def test_what_was_assumed_names_the_framework_and_whose_batch_it_is() -> None:
    split = stepsight.predict(EXAMPLES / "llama3_70b_3d.toml", "8x8xH100-SXM-400G")
    assert "batch 128 (128 per replica)" in assumed(split)
    assert "recipe megatron-2025" in assumed(split)
    stated = split.to_dict()["assumed"]
    assert (stated["framework"], stated["batch_per_replica"]) == ("megatron", 128)
    whole = stepsight.predict(EXAMPLES / "gpt2.toml", "2xV100-SXM2")
    assert whole.to_dict()["assumed"]["framework"] == "eager"


def test_mfu_is_against_the_peak_of_the_stated_type() -> None:
    job = Job.replicated(RankProgram((Op("a", (GEMM,)),)), 2)
    setup = Setup(model_flops=4e12, product_dtype="fp8")
    rates = throughput(job, 2, 1e6, setup, stepsight.load_gpu("H100-SXM"))
    assert (rates.dtype, rates.mfu) == ("fp8", pytest.approx(2.0 / 1978.9))


def test_recomputed_flops_count_for_hfu_only() -> None:
    none, selective, full = (
        stepsight.predict("llama3-8b", "8xH100-SXM", set={"zero": 3, "recompute": mode}).throughput
        for mode in ("none", "selective", "full")
    )
    assert none.hfu is None
    assert selective.hfu and selective.mfu and full.hfu and full.mfu
    assert 1.0 < selective.hfu / selective.mfu < 1.25 < full.hfu / full.mfu < 4 / 3


def test_attention_without_a_window_sees_the_whole_sequence() -> None:
    sizes = {"batch": 1, "heads": 8, "q": 1024, "head_dim": 64}
    assert product_flops(Kernel.of("attention", "bf16", **sizes)) == 4 * 8 * 1024 * 1024 * 64


def test_fp8_mfu_is_also_given_against_the_bf16_peak() -> None:
    rates = stepsight.predict(
        "llama3-8b", "8xH100-SXM", set={"zero": 3, "training.precision": "fp8"}
    ).throughput
    assert rates.mfu is not None
    assert rates.mfu_of_bf16_peak == pytest.approx(2 * rates.mfu, rel=1e-3)


def test_image_models_count_images() -> None:
    found = stepsight.predict("vit-l", "8xH100-SXM", set={"mbs": 64})
    assert found.throughput.tokens_per_s is None
    assert found.throughput.samples_per_s == pytest.approx(512 / (found.step_time_us / 1e6))
    assert "512 (64 per rank" in assumed(found)


def test_a_trace_without_the_sizes_of_its_products_states_no_mfu() -> None:
    known = Kernel.of("gemm", "fp16", m=1024, n=1024, k=1024)
    hidden = Kernel.of("gemm", "fp16", sizing=Sizing.UNKNOWN, m=2048, n=2048, k=2048)
    jobs = [Job.replicated(RankProgram((Op("a", kernels),)), 1) for kernels in ((known,), (known, hidden))]
    sure, unsure = (throughput(job, 1, 1e3, None, load_gpu("A100-SXM4-40G")) for job in jobs)
    assert sure.mfu is not None and sure.counted == "kernels"
    assert (unsure.mfu, unsure.model_flops, unsure.counted) == (None, 0.0, "unknown")


def test_a_kernel_that_stands_for_several_counts_them() -> None:
    one = Kernel.of("gemm", "bf16", m=1000, n=1000, k=1000)
    both = replace(one, parts=((one, 2),))
    assert job_flops(Job.replicated(RankProgram((Op("a", (both,)),)), 1)) == {"bf16": pytest.approx(4e9)}


def test_json_and_attributes_have_the_same_names() -> None:
    found = stepsight.predict("llama3-8b", "8xH100-SXM", set={"zero": 3})
    assert [name for name in found.to_dict() if not hasattr(found, name)] == []


def test_searching_and_capturing_are_functions_with_a_signature() -> None:
    assert inspect.isfunction(stepsight.tune) and inspect.isfunction(stepsight.capture)
    assert "global_batch" in inspect.signature(stepsight.tune).parameters
    assert "world" in inspect.signature(stepsight.capture).parameters


def test_a_dict_may_be_named() -> None:
    sizes = {"kind": "transformer", "name": "mine", "family": "gpt2", "layers": 2, "hidden": 256, "heads": 4}
    sizes |= {"vocab": 1000, "sequence": 128, "batch_per_rank": 4}
    assert stepsight.predict(sizes, "8xH100-SXM").workload == "mine"
