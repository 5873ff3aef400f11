"""Changes of a job, each applied and simulated."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from stepsight import advise, load_workload, predict
from stepsight.capturing.step import CapturedStep, RankMemoryUse
from stepsight.hardware.gpus import load_gpu
from stepsight.platform.load import load_platform
from stepsight.prediction.changes import changes_of, rewrites_of
from stepsight.program.job import Job, Kernel, Op, RankProgram
from stepsight.workload.files import resolve
from stepsight.workload.llm.workload import LanguageWorkload

BERT, ON = "examples/bert.toml", "4xA100-SXM4-40G"


def test_changes_come_by_gain_and_each_can_be_simulated() -> None:
    found = advise(BERT, ON)
    gains = [one.gain for one in found.changes]
    assert gains == sorted(gains, reverse=True)
    first = found.changes[0]
    assert first.name == "bf16 with flash attention"
    assert first.alters
    set_to = first.set_line.replace("--set ", "").split()
    assert predict(load_workload(BERT, set_to), ON).step_time_us == pytest.approx(first.step_us, rel=1e-6)


def test_a_change_that_changes_the_micro_batch_says_so() -> None:
    before = resolve_micro_batch()
    for one in advise("llama3-8b", "8xH100-SXM").changes:
        sets = tuple(shlex.split(one.set_line)[1::2])
        stated = [line for line in sets if line.startswith("parallel.micro_batch=")]
        assert resolve_micro_batch(*sets) == (int(stated[0].split("=")[1]) if stated else before), one.name


def resolve_micro_batch(*sets: str) -> int:
    platform = load_platform("8xH100-SXM")
    found = resolve(load_workload("llama3-8b", sets), 8, platform.spec.gpu)
    assert isinstance(found, LanguageWorkload)
    return found.config.micro_batch


def test_changes_of_the_layout_keep_a_batch_that_nobody_stated() -> None:
    """Two tensor ranks halve the replicas, and by default the batch: the line states the job's own."""
    found = advise("llama3-8b", "8xH100-SXM", assignments=["zero=1"])
    tensor = next(one for one in found.changes if one.name.startswith("tensor parallel 2"))
    assert "--set global_batch=8" in tensor.set_line


def test_plain_pytorch_that_does_not_fit_is_sharded_or_trained_in_half_precision() -> None:
    full = ["training.attention=eager", "training.precision=fp32"]
    found = advise("gpt2-xl", "8xA100-SXM4-40G", assignments=full)
    lines = {one.name: one.set_line for one in found.changes}
    assert "--set training.recipe=pytorch --set parallel.zero=3" in lines["FSDP: parameters sharded as well"]
    assert found.changes[0].name.startswith("bf16 with flash attention")


def test_adapters_are_the_last_resort_of_a_job_that_fits_in_no_other_way() -> None:
    found = advise("llama3-70b", "1xH100-SXM")
    assert [one.name.split(",")[0] for one in found.changes] == ["QLoRA: frozen weights in 4 bits"]
    assert found.changes[0].fits
    assert "low-rank adapters only" in found.changes[0].alters


def test_a_long_sequence_is_cut_over_the_gpus_of_a_node() -> None:
    found = advise("llama3-8b", "8xH100-SXM", assignments=["sequence=131072"])
    assert not found.fits and 0 < len(found.changes) <= 3
    assert all(one.fits and "parallel" in one.name and not one.alters for one in found.changes)


def test_tables_that_fill_a_gpu_are_put_on_more() -> None:
    found = advise("examples/dlrm_mlperf.toml", "8xA100-SXM4-40G")
    assert {"--set parallel.ranks=4", "--set parallel.ranks=8"} <= {one.set_line for one in found.changes}
    (note,) = advise("examples/dlrm_mlperf.toml", "1xA100-SXM4-40G").notes
    assert note.startswith("more GPUs: -p 4xA100-SXM4-40G --set parallel.ranks=4  (")


@pytest.mark.parametrize("platform", ["8xH100-SXM", "2x8xH100-SXM-200G"])
def test_a_model_that_fits_in_no_way_gets_the_gpus_on_which_it_does(platform: str) -> None:
    found = advise("llama3.1-405b", platform)
    assert found.notes[0].startswith(f"more GPUs: -p {found.more_gpus}  (")
    assert predict("llama3.1-405b", found.more_gpus).fits
    assert found.more_gpus.endswith("-200G") is platform.endswith("-200G")


def test_zero_1_is_not_advised_where_the_framework_has_none() -> None:
    for framework, offered in (("torchtitan", False), ("megatron", True)):
        job = load_workload("llama3-8b", [f"framework={framework}", "parallel.data=8", "zero=0"])
        lines = [one.assignments for one in changes_of(job, load_gpu("H100-SXM"))]
        assert (("parallel.zero=1",) in lines) is offered


def test_nothing_that_the_job_does_already_is_advised() -> None:
    found = advise(BERT, ON, assignments=["training.precision=bf16", "training.attention=flash"])
    names = {one.name for one in found.changes}
    assert not names & {"bf16", "tf32", "flash attention"}


def test_a_job_that_does_not_fit_gets_what_makes_it_fit() -> None:
    found = advise("llama3-8b", "8xH100-SXM", assignments=["global_batch=64", "zero=1"])
    assert not found.fits
    assert found.changes
    assert all(one.fits and (one.saved_bytes or 0) > 0 for one in found.changes)


def test_a_small_gain_is_within_the_interval() -> None:
    found = advise(BERT, ON)
    reach = found.prediction.high_us / found.prediction.step_time_us - 1
    assert all(one.beyond_interval == (one.gain > reach) for one in found.changes)


def _gemm(dtype: str = "fp32") -> Kernel:
    return Kernel.of("gemm", dtype, batch=1, m=2048, n=2048, k=2048)


def _pointwise(elements: float = 4e6) -> Kernel:
    return Kernel.of("elementwise", elements=elements, read_bytes=4 * elements, write_bytes=4 * elements)


def captured(*ops: Op) -> CapturedStep:
    memory = RankMemoryUse(
        0, 4e9, 5e9, {"parameters": 1e9, "optimizer_state": 2e9, "activations_and_temporaries": 1e9}
    )
    return CapturedStep("train.py", "", Job.of([RankProgram(ops)]), (memory,))


def rewritten(step: CapturedStep, name: str, gpu: str = "A100-SXM4-40G") -> Job | None:
    return next((r.step.job for r in rewrites_of(step, load_gpu(gpu)) if r.name == name), None)


def test_waits_of_the_host_are_removed_and_named() -> None:
    step = captured(Op("aten::mm", kernels=(_gemm(),)), Op("aten::item", blocks_host=True))
    found = {r.name: r for r in rewrites_of(step, load_gpu("A100-SXM4-40G"))}
    assert "aten::item" in found["no waits of the host for the GPU"].done
    assert "CUDA graph" not in found, "a step that reads values cannot be a graph"


def test_neighbouring_elementwise_kernels_are_joined() -> None:
    ops = tuple(Op(f"aten::{name}", kernels=(_pointwise(),)) for name in ("add", "mul", "relu"))
    job = rewritten(captured(Op("aten::mm", kernels=(_gemm(),)), *ops), "torch.compile")
    assert job is not None
    kernels = [k for op in job.programs[0].ops for k in op.kernels]
    assert [k.family for k in kernels] == ["gemm", "elementwise"]
    assert kernels[1].dim("write_bytes") == 16e6


def test_kernels_of_other_sizes_stay() -> None:
    ops = (Op("aten::add", kernels=(_pointwise(4e6),)), Op("aten::mul", kernels=(_pointwise(2e6),)))
    assert rewritten(captured(*ops), "torch.compile") is None


def test_products_are_cast_or_computed_in_tf32() -> None:
    step = captured(Op("aten::mm", kernels=(_gemm(),)))
    tf32, bf16 = rewritten(step, "tf32"), rewritten(step, "bf16 autocast")
    assert tf32 is not None and bf16 is not None
    assert [k.dtype for k in tf32.programs[0].ops[0].kernels] == ["tf32"]
    assert [k.family for k in bf16.programs[0].ops[0].kernels] == ["elementwise", "gemm"]


def test_products_get_the_types_that_the_gpu_has_units_for() -> None:
    names = {r.name for r in rewrites_of(captured(Op("aten::mm", kernels=(_gemm(),))), load_gpu("V100"))}
    assert "fp16 autocast" in names and not names & {"tf32", "bf16 autocast"}
    stated = rewritten(captured(Op("aten::mm", kernels=(_gemm("bf16"),))), "fp16 autocast", "V100")
    assert stated is not None and [k.dtype for k in stated.programs[0].ops[0].kernels] == ["fp16"]
    lines = [one.set_line for one in advise(BERT, "4xV100").changes]
    assert any("precision=fp16" in line for line in lines)
    assert not any("bf16" in line or "tf32" in line for line in lines)


def test_copies_around_convolutions_go_with_channels_last() -> None:
    conv = Kernel.of("conv", "fp16", batch=8, c_in=64, c_out=64, h=56, w=56, kh=3, kw=3, reordered=1)
    job = rewritten(captured(Op("aten::conv2d", kernels=(conv,))), "channels_last")
    assert job is not None
    assert job.programs[0].ops[0].kernels[0].dim("reordered") == 0


def test_groups_by_pixel_get_the_kernels_that_the_steps_cudnn_has() -> None:
    sizes = {"batch": 8, "c_in": 168, "c_out": 168, "h": 14, "w": 14, "kh": 3, "kw": 3}
    conv = Kernel.of("conv_wgrad", "fp16", **sizes, groups=3, reordered=1)
    step = captured(Op("aten::convolution_backward", kernels=(conv,)))
    variants = []
    for version in ("1.12", "2.6.0+cu124"):
        job = rewritten(replace(step, torch=version), "channels_last")
        assert job is not None
        variants.append(job.programs[0].ops[0].kernels[0].kind.variant)
    assert variants == ["grouped_direct", ""]


def test_an_update_of_many_kernels_becomes_one() -> None:
    update = Op("Optimizer.step", kernels=tuple(_pointwise(1e4) for _ in range(8)), phase="optimizer")
    job = rewritten(captured(Op("aten::mm", kernels=(_gemm(),)), update), "fused optimizer")
    assert job is not None
    assert [k.family for k in job.programs[0].ops[1].kernels] == ["optimizer"]


def test_a_captured_step_that_does_not_fit_gets_the_largest_part_of_its_batch_that_does() -> None:
    step = captured(Op("aten::mm", kernels=(_gemm(),)))
    held = {"parameters": 1e9, "optimizer_state": 2e9, "activations_and_temporaries": 90e9}
    large = replace(step, memory=(RankMemoryUse(0, 93e9, 94e9, held),))
    found = advise(large, "1xA100-SXM4-40G")
    assert not found.fits
    assert [one.name for one in found.changes] == ["1/4 of the batch"]
    assert found.changes[0].fits


def test_a_captured_step_gets_advice() -> None:
    slow = captured(*(Op("aten::mm", kernels=(_gemm(),)) for _ in range(20)))
    found = advise(replace(slow, name="train.py"), "1xA100-SXM4-40G")
    assert {"tf32", "bf16 autocast"} <= {one.name for one in found.changes}
    assert found.to_dict()["changes"][0]["done"]


def test_a_job_that_does_not_fit_is_tried_with_modules_run_again() -> None:
    """As a shell takes it: lists are quoted."""
    found = advise("llama3-8b", "8xH100-SXM", assignments=["tp=2", "gbs=16", "mbs=2", "seq=9216"])
    assert not found.fits
    lines = [one.set_line for one in found.changes]
    assert any(line.startswith("--set 'training.recompute=[") for line in lines)


def test_a_shipped_step_goes_on_the_gpus_that_there_are() -> None:
    assert advise("resnet50", "1xA100-SXM4-80G").prediction.step_time_us > 0


def test_experts_are_tried_over_the_gpus_of_a_node() -> None:
    sharded = ("training.recipe=torchtitan-2025",)
    lines = [one.set_line for one in advise("mixtral-8x7b", "2x8xH100-SXM-400G", assignments=sharded).changes]
    assert any("parallel.expert=8" in line for line in lines)
