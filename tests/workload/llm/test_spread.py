"""A mixture of experts without a layout: experts inside a node, stages across nodes, else fully sharded."""

from __future__ import annotations

import pytest

from stepsight.hardware.gpus import gpu_catalogue
from stepsight.workload.files import load_workload, resolve
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.workload import LanguageWorkload

H100 = "H100-SXM-80G"


def spread(name: str, gpus: int, *sets: str, gpu: str = H100, per_node: int = 8) -> LanguageConfig:
    found = resolve(load_workload(name, sets), gpus, gpu_catalogue()[gpu].gpu, per_node)
    assert isinstance(found, LanguageWorkload)
    return found.config


def test_experts_lie_on_the_gpus_of_a_node() -> None:
    c = spread("gpt-oss-20b", 8)
    assert (c.layout.expert, c.layout.pipeline, c.layout.zero, c.framework.name) == (8, 1, 1, "megatron")
    assert "layout" in c.left_open and "training.recompute" not in str(c.differs)


@pytest.mark.parametrize(("name", "gpus", "expert"), [("gpt-oss-120b", 64, 8), ("deepseek-v3", 2048, 8)])
def test_what_does_not_fit_becomes_a_pipeline(name: str, gpus: int, expert: int) -> None:
    s = spread(name, gpus).layout
    assert s.pipeline > 1 and s.expert == expert and s.ranks == gpus


def test_a_wider_node_takes_more_experts_apart() -> None:
    assert spread("deepseek-v3", 256, gpu="GB200-186G", per_node=64).layout.expert == 64
    assert spread("deepseek-v3", 576, gpu="GB200-186G", per_node=72).layout.expert == 8


def test_what_no_layout_of_experts_holds_is_fully_sharded() -> None:
    c = spread("qwen3-30b-a3b", 8)
    assert c.layout.zero == 3 and c.layout.expert == 1 and c.recipe.startswith("torchtitan")


def test_a_tensor_group_leaves_experts_open_and_a_stated_layout_does_not() -> None:
    assert spread("gpt-oss-120b", 64, "tp=2").layout.expert == 8
    for stated in ("ep=4", "pp=2", "zero=3", "recipe=torchtitan-2025"):
        assert "layout" not in spread("gpt-oss-120b", 64, stated).left_open


def test_stated_ranks_are_kept() -> None:
    assert spread("gpt-oss-20b", 16, "parallel.ranks=8").layout.ranks == 8


def test_pieces_of_a_pipeline_are_never_more_than_its_layers() -> None:
    assert spread("deepseek-v3", 2048, "pp=16", "ep=64").layout.chunks <= 63


def test_megatron_splits_a_model_no_more_than_fits() -> None:
    megatron = "training.framework=megatron"
    small, large = spread("llama3-8b", 8, megatron).layout, spread("llama3-70b", 512, megatron).layout
    assert (small.data, small.tensor, small.pipeline) == (4, 2, 1)
    assert (large.tensor, large.pipeline) == (8, 2)
    assert spread("llama3.2-1b", 8, megatron).layout.tensor == 1
    assert "layout" not in spread("llama3-70b", 512, megatron, "tp=8").left_open


@pytest.mark.parametrize("sets", [(), ("global_batch=2048",)])
def test_more_gpus_than_a_batch_has_sequences_are_megatrons(sets: tuple[str, ...]) -> None:
    c = spread("llama3-405b", 16384, *sets)
    assert c.framework.name == "megatron" and c.layout.tensor == 8 and c.layout.pipeline >= 8
    assert "layout" in c.left_open


def test_fsdp_stays_where_every_gpu_has_a_sequence_or_it_was_asked_for() -> None:
    assert spread("llama3-405b", 1024).framework.name == "torchtitan"
    assert spread("llama3-405b", 16384, "zero=fsdp").framework.name == "torchtitan"
