"""What a GPU cannot run is refused with what to use instead; what it runs slowly is stated first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from stepsight import load_platform, predict
from stepsight.cli import cli
from stepsight.errors import InputError
from stepsight.hardware.gpus import load_gpu
from stepsight.hardware.spec import emulated, has_units
from stepsight.tuning.evaluate import evaluate
from stepsight.tuning.trial import ILLEGAL, Trial


def job(**training: Any) -> dict[str, Any]:
    return {
        "kind": "transformer", "model": "llama3.2-1b", "sequence": 1024, "batch_per_rank": 1,
        "training": training,
    }  # fmt: skip


@pytest.mark.parametrize(("gpu", "instead"), [("A100", "bf16"), ("V100", "fp16"), ("MI250X", "bf16")])
def test_fp8_without_units_is_refused_with_what_to_use(gpu: str, instead: str) -> None:
    with pytest.raises(InputError, match=f"training.precision.*no fp8 tensor cores; use {instead}"):
        predict(job(precision="fp8"), f"8x{gpu}")


def test_bf16_on_a_v100_runs_slowly_and_says_so_first() -> None:
    found = predict(job(precision="bf16"), "8xV100")
    assert "no bf16 tensor cores" in found.notes[0] and "use fp16" in found.notes[0]
    assert not any("tensor cores" in note for note in predict(job(precision="fp16"), "8xV100").notes)


def test_a_gpu_without_bf16_is_trained_in_fp16_where_nobody_states_a_type() -> None:
    found = predict(job(), "8xV100")
    assert found.setup is not None and found.setup.precision == "fp16"
    assert "efficient attention" in found.setup.details
    assert found.step_time_us < predict(job(precision="bf16"), "8xV100").step_time_us
    assert predict(job(), "8xP4").throughput.dtype == "fp32"


def test_the_warning_stands_before_the_answer() -> None:
    sizes = ["--set", "batch_per_rank=1", "--set", "sequence=1024", "--set", "precision=bf16"]
    said = CliRunner().invoke(cli, ["predict", "--model", "llama3.2-1b", "-p", "8xV100", *sizes])
    assert said.exit_code == 0 and said.output.startswith("warning: V100-SXM2-16G has no bf16 tensor cores")


def test_a_description_without_a_peak_is_asked_for_it() -> None:
    mine = replace(load_gpu("V100"), name="mine", source="given")
    assert "states no bf16 peak" in emulated(mine, "bf16")
    assert "or state gpu.peak_tflops.bf16" in emulated(mine, "bf16")
    assert has_units(mine, "int8") and has_units(load_gpu("H100"), "fp8")


@pytest.mark.parametrize(
    ("attention", "gpu", "reason"),
    [
        ("flash3", "A100", "runs on Hopper only.*use flash2"),
        ("flash3", "B200", "runs on Hopper only.*use cudnn"),
        ("cudnn", "MI355X", "cuDNN is NVIDIA's.*use flash2"),
        ("cudnn", "V100", "needs Ampere or later.*use eager"),
    ],
)
def test_an_attention_kernel_of_another_gpu_is_refused(attention: str, gpu: str, reason: str) -> None:
    training = {"attention": attention, "precision": "fp16"}
    with pytest.raises(InputError, match=f"training.attention.*{reason}"):
        predict(job(**training), f"8x{gpu}")


@pytest.mark.parametrize(("attention", "gpu"), [("flash3", "H100"), ("cudnn", "B200"), ("cudnn", "A100")])
def test_an_attention_kernel_of_this_gpu_is_not(attention: str, gpu: str) -> None:
    assert predict(job(attention=attention), f"8x{gpu}").step_time_us > 0


def test_a_search_skips_what_does_not_run_with_the_reason() -> None:
    row = evaluate(job(), Trial({"training.precision": "fp8"}, "8xA100"), "job")
    assert row.status == ILLEGAL and "no fp8 tensor cores" in row.reason


def test_a_clearly_faster_attention_kernel_is_named_with_the_step_tried() -> None:
    def hints(gpu: str, attention: str) -> list[str]:
        found = predict(job(attention=attention) | {"sequence": 8192}, f"8x{gpu}")
        return [note for note in found.notes if "training.attention=" in note]

    (hint,) = hints("B200", "flash2")
    slow = predict(job(attention="flash2") | {"sequence": 8192}, "8xB200").step_time_us
    fast = predict(job(attention="cudnn") | {"sequence": 8192}, "8xB200").step_time_us
    assert hint.endswith(f"(−{100 * (1 - fast / slow):.1f} %)")  # of the step, not of the kernel alone
    assert not hints("B200", "cudnn") and not hints("A100", "flash2") and not hints("MI355X", "flash2")


def test_a_layout_by_default_that_waits_for_its_exchanges_is_pointed_out() -> None:
    (hint,) = (n for n in predict("llama3.1-405b", "256x8xH100-SXM-25G").notes if "no layout given" in n)
    assert "FSDP over 2,048 GPUs" in hint and "stepsight tune" in hint
    (hint,) = (n for n in predict("deepseek-v3", "64x8xH100-SXM-25G").notes if "no layout given" in n)
    assert "ep 8, pp 16" in hint and "(ep)" in hint


def test_groups_of_experts_that_cross_racks_are_pointed_out() -> None:
    def crossing(platform: str) -> bool:
        notes = predict("qwen3-30b-a3b", platform, set={"ep": 64}).notes
        return any("some groups span two nodes" in note for note in notes)

    assert crossing("8x72xGB200") and not crossing("8x64xGB200") and not crossing("8x8xH100-SXM-400G")


def test_a_layout_that_somebody_stated_is_not_pointed_out() -> None:
    for name, sets in (("llama3-8b", {}), ("deepseek-v3", {"ep": 8})):
        assert not any("no layout" in n for n in predict(name, "64x8xH100-SXM-400G", set=sets).notes)


def test_a_batch_by_default_that_leaves_the_device_idle_is_pointed_out() -> None:
    (hint,) = (n for n in predict("vit-b-16", "8xA100-SXM4-80G").notes if "no batch given" in n)
    assert "one image per rank" in hint and "mbs=" in hint
    stated = predict("vit-b-16", "8xA100-SXM4-80G", set={"mbs": 1})
    assert not any("no batch" in n for n in stated.notes) and not stated.assumed.get("default_batch")


def test_a_kernel_in_a_type_without_units() -> None:
    sizes = ["--dim", "m=512", "--dim", "n=512", "--dim", "k=512"]
    refused = CliRunner().invoke(cli, ["kernel", "gemm", "--gpu", "A100", "--dtype", "fp8", *sizes])
    assert refused.exit_code != 0
    slow = CliRunner().invoke(cli, ["kernel", "gemm", "--gpu", "V100", "--dtype", "bf16", *sizes])
    assert "no bf16 tensor cores" in slow.output


@pytest.mark.parametrize("name", ["64x4xGB200-400G", "2x4xGB300"])
def test_trays_of_a_rack_are_no_nodes(name: str) -> None:
    (note,) = load_platform(name).notes
    written = note.rsplit(" ", 1)[1]
    assert load_platform(written).spec.ranks == load_platform(name).spec.ranks
    assert load_platform(written).notes == ()
