"""Every setting says where it came from."""

from __future__ import annotations

from stepsight.workload.files import settings


def origins(workload: str, *changes: str) -> dict[str, str]:
    return {one.name: one.origin for one in settings(workload, changes, gpus=8)}


def test_settings_of_a_model_come_from_its_name_the_command_line_and_its_recipe() -> None:
    found = origins("llama3-8b", "zero=3", "seq=4096")
    assert found["hidden"] == "file" and found["parallel.zero"] == "--set" and found["sequence"] == "--set"
    assert any(origin.startswith("recipe torchtitan") for origin in found.values())
    assert "default" in found.values()


def test_settings_of_a_dlrm_are_those_of_its_file() -> None:
    found = origins("examples/dlrm.toml", "batch=8192")
    assert found["batch"] == "--set" and found["kind"] == "file"
