"""Where each setting comes from."""

from __future__ import annotations

from pathlib import Path

from stepsight.platform.load import load_platform
from stepsight.workload.settings import settings

DLRM = str(Path(__file__).parents[2] / "examples" / "dlrm.toml")


def origins(
    workload: str, *changes: str, platform: str = "8xH100-SXM", on: tuple[str, ...] = ()
) -> dict[str, str]:
    return {one.name: one.origin for one in settings(workload, load_platform(platform, on).spec, changes, on)}


def test_settings_of_a_model_come_from_its_name_the_command_line_and_its_recipe() -> None:
    found = origins("llama3-8b", "zero=3", "seq=4096")
    assert found["hidden"] == "model llama3-8b" and found["parallel.data"] == "all GPUs of the platform"
    assert found["parallel.zero"] == "--set" and found["sequence"] == "--set"
    assert any(origin.startswith("recipe torchtitan") for origin in found.values())
    assert "default" in found.values()


def test_what_a_recipe_gives_and_the_layout_overrules_has_its_reason() -> None:
    assert origins("llama3-8b")["parallel.sequence_parallel"] == "tensor is 1"
    assert origins("llama3-8b", "tp=2")["parallel.sequence_parallel"].startswith("recipe ")
    assert origins("llama3-8b", platform="8xA100-SXM4-40G")["training.recompute"] == "to fit"
    assert (
        origins(
            "llama3-8b",
            platform="1xMI300X",
        )["parallel.zero"]
        == "one replica"
    )


def test_what_a_recipe_has_for_a_model_on_a_gpu_is_the_recipes() -> None:
    layout = ("recipe=nemo-2026", "precision=fp8", "training.fp8_scaling=block", "ep=8", "mbs=1")
    found = origins("qwen3-30b-a3b", *layout, platform="8xGB200")
    assert found["training.cuda_graphs"] == found["parallel.expert_dispatch"] == "recipe nemo-2026"


def test_recipe_and_framework_have_rows() -> None:
    usual, named = origins("llama3-8b"), origins("llama3-8b", "framework=hf")
    assert usual["training.recipe"] == usual["training.framework"] == "usual for such a model and layout"
    assert named["training.framework"] == "--set" and named["training.recipe"] == "follows from the other"


def test_board_link_and_nic_have_rows() -> None:
    found = origins("llama3-8b", platform="2x8xA100-200G", on=("link.gbps=250",))
    assert found["platform.gpu"] == "platform 2x8xA100-200G" and found["platform.link.gbps"] == "--set"
    assert found["platform.nic.gbps"] == "given in the name"


def test_settings_of_a_dlrm_are_those_of_its_file_and_defaults() -> None:
    found = origins(DLRM, "batch=8192")
    assert found["batch"] == "--set" and found["kind"] == "file"
    assert found["training.stack"] == "default" and found["parallel.ranks"] == "all GPUs of the platform"
    assert "dense.cross_layers" not in found
