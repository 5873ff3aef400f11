"""How rows of published tables become cases: what a row states, what its publication adds, what is slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.datasets.folder import data_folder
from lab.datasets.llm import published
from lab.datasets.llm.case import Case, merged
from lab.datasets.llm.files import FILES, cases, file_of
from lab.datasets.llm.layouts import mark_slow
from lab.datasets.llm.nvidia import dgxc, mlperf
from lab.datasets.llm.others import xtuner
from stepsight.errors import InputError

DGXC = {
    "release": "25.02", "model": "Llama 3.1 70b", "precision": "BF16", "gpu": "H100", "gpus": "64",
    "seq": "8192", "tp": "4.0", "pp": "4.0", "cp": "2.0", "vp": "5.0", "ep": "", "micro_batch": "1.0",
    "global_batch": "128", "step_s": "14.6",
}  # fmt: skip


def run(ms: float | None, *, micro: int = 2, pipeline: int = 1, tensor: int = 1, group: str = "g") -> Case:
    data = 64 // (pipeline * tensor)
    parallel = {"data": data, "tensor": tensor, "pipeline": pipeline, "micro_batch": micro, "zero": 0}
    return Case({"batch_per_rank": 16, "parallel": parallel}, measured_ms=ms, group=group)


def test_as_asked_holds_what_the_row_states_and_the_recipe_alone() -> None:
    case = dgxc(DGXC)
    assert case.asked is not None and case.document is not None
    assert set(case.asked["parallel"]) == {
        "data", "tensor", "pipeline", "context", "micro_batch", "virtual_stages",
    }  # fmt: skip
    assert set(case.asked["training"]) == {"precision", "recipe"}
    assert case.document["training"]["gradients"] == "half"
    assert case.document["parallel"]["sequence_parallel"] is True
    assert case.measured_ms == pytest.approx(14600.0)
    assert case.platform == "8x8xH100-SXM-80G-400G"


def test_recipes_state_parts_of_experts_and_fsdp() -> None:
    stated = dgxc({**DGXC, "ep": "8", "etp": "2", "fsdp": "8", "pp": "1", "vp": ""}).stated
    assert stated is not None
    assert (stated["parallel"]["expert_tensor"], stated["parallel"]["zero"]) == (2, 3)


MLPERF = {
    "round": "v4.1", "submitter": "a", "system": "b", "benchmark": "llama2_70b_lora", "precision": "",
    "gpu": "H100-SXM5-80GB", "gpus": "16", "nodes": "2", "config_sure": "no", "tp": "4.0", "pp": "", "cp": "",
    "vp": "", "global_batch": "8", "micro_batch": "", "seq": "8192", "grad_acc_logged": "4.0",
    "config_json": "", "step_ms": "2189.2",
}  # fmt: skip


def test_a_layout_that_is_not_sure_follows_from_the_logged_accumulation() -> None:
    stated = mlperf(MLPERF).stated
    assert stated is not None  # 8 sequences in 4 steps: 2 replicas of 8 ranks, 4 of them over tensors
    assert stated["parallel"] == {"data": 2, "tensor": 4, "pipeline": 1, "context": 2, "micro_batch": 1}


def test_a_layout_that_nobody_states_is_the_least_that_fits() -> None:
    found = mlperf({**MLPERF, "grad_acc_logged": ""}).layouts
    assert found[0] == {"data": 8, "tensor": 2, "pipeline": 1, "context": 1, "micro_batch": 1}
    logged = {"benchmark": "gpt3", "gpus": "512", "global_batch": "2048", "grad_acc_logged": "64"}
    found = mlperf({**MLPERF, **logged}).layouts
    assert {p["data"] * p["micro_batch"] for p in found} == {32}


@pytest.mark.parametrize(
    ("gpu", "nodes", "platform", "recipe"),
    [
        ("NVIDIA GB200", "4", "16xGB200-186G", "mlperf-nvidia-2024"),
        ("AMD Instinct MI325X 256GB HBM3e", "2", "2x8xMI325X-400G", "mlperf-amd-2025"),
        ("NVIDIA H200-NVL-141GB", "2", "2x8xH200-NVL-400G", "mlperf-nvidia-2024"),
    ],
)
def test_a_result_names_its_platform_and_recipe(gpu: str, nodes: str, platform: str, recipe: str) -> None:
    case = mlperf({**MLPERF, "gpu": gpu, "nodes": nodes})
    assert (case.platform, case.recipe) == (platform, recipe)


def test_a_submission_names_the_layers_that_it_runs_again() -> None:
    sure = {
        "config_sure": "yes",
        "pp": "1",
        "cp": "2",
        "config_json": '{"ACG": "full", "ACM": "block", "ACL": "21"}',
    }
    assert mlperf({**MLPERF, **sure}).settings["training"]["recompute"] == 21


def test_tokens_per_second_become_the_time_of_a_step() -> None:
    row = {
        "model": "Llama2-7B", "gpu": "A100-SXM4-80G", "gpus": "8", "seq": "131072",
        "sequence_parallel": "8", "micro_batch": "1", "tokens_s_gpu": "1000",
    }  # fmt: skip
    assert xtuner(row).measured_ms == pytest.approx(1e3 * 131072 / 8 / 1000)


def test_sections_are_joined() -> None:
    found = merged({"a": 1, "training": {"x": 1}}, {"training": {"y": 2}, "sequence": 8})
    assert found == {"a": 1, "training": {"x": 1, "y": 2}, "sequence": 8}


def test_a_run_is_slow_beside_two_faster_neighbours() -> None:
    runs = [run(210.0), run(100.0, micro=1), run(100.0, tensor=2), run(None, micro=4)]
    assert [c.slow for c in mark_slow(runs)] == [True, False, False, False]
    assert not any(c.slow for c in mark_slow(runs[:2]))  # one neighbour may be the odd one


def test_bubbles_and_layouts_far_away_do_not_make_a_run_slow() -> None:
    deep = run(210.0, pipeline=8, micro=8)  # 2 micro-batches of 9 slots
    near = [run(100.0, pipeline=8, micro=4), run(100.0, pipeline=4, micro=8)]
    assert not any(c.slow for c in mark_slow([deep, *near]))
    far = [run(100.0, tensor=16), run(100.0, tensor=16, micro=1), run(100.0, group="h")]
    assert not any(c.slow for c in mark_slow([run(900.0, tensor=8), *far]))


def test_a_row_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    (tmp_path / "dgxc_llm.csv").write_text("release,model,precision,gpus\n25.02,Llama 3.1 8b,BF16,8\n")
    (case,) = cases(file_of("dgxc_llm"), tmp_path)
    assert case.document is None and "cannot be read" in case.lacks


def test_gpus_that_a_layout_leaves_out_are_named(tmp_path: Path) -> None:
    row = {**DGXC, "gpus": "68"}
    (tmp_path / "dgxc_llm.csv").write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    (case,) = cases(file_of("dgxc_llm"), tmp_path)
    assert case.name.endswith("(its layout uses 64 of them)")


@pytest.mark.data
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_published_row_is_read(file) -> None:  # type: ignore[no-untyped-def]
    try:
        found = cases(file, data_folder())
    except InputError as error:
        pytest.skip(str(error))
    assert found and not [case.lacks for case in found if "cannot be read" in case.lacks]


AUTOMODEL = {
    "source": "NVIDIA-NeMo/Automodel", "file": "automodel.csv", "model": "Qwen2.5 32B", "task": "LoRA",
    "gpu": "H100", "gpus": "16", "global_batch": "32", "micro_batch": "1", "seq": "4096", "precision": "BF16",
    "parallelism": "TP=1 PP=4 CP=1 EP=n/a VP=8 FSDP=2", "iter_time_ms": "1000",
}  # fmt: skip


@pytest.mark.parametrize("file", ["automodel.csv", "nemo_megatron.csv"])
def test_automodel_shards_fully_in_the_groups_that_a_row_states(file: str) -> None:
    found = published.case({**AUTOMODEL, "file": file})
    assert found.recipe == "automodel-2025" and found.stated is not None
    assert found.stated["training"] == {"precision": "bf16", "adapters": "lora"}
    parallel = found.stated["parallel"]
    assert (parallel["data"], parallel["zero"], parallel["shard_group"]) == (4, 3, 2)
