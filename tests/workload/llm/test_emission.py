"""Host work of the update that no launch covers."""

from __future__ import annotations

from stepsight.program.job import Op
from stepsight.workload.files import load_workload, resolve
from stepsight.workload.llm.build import build
from stepsight.workload.llm.workload import LanguageWorkload


def loops(*sets: str) -> list[Op]:
    found = resolve(load_workload("deepseek-v2-lite", ("framework=megatron", "mbs=1", *sets)), 8)
    assert isinstance(found, LanguageWorkload)
    return [op for op in build(found.config).programs[0].ops if op.phase == "parameter tensors"]


def test_a_shared_out_optimizer_loops_over_the_tensors_of_a_ranks_share() -> None:
    """Of experts each has two, and nobody else holds them; the rest is shared out over all replicas."""
    (op,) = loops("ep=8")
    assert abs(op.launches - (26 * 8 * 2 + 27 * 9 / 8)) < 4


def test_an_optimizer_that_shares_nothing_out_copies_by_multi_tensor_kernels() -> None:
    assert not loops("ep=8", "zero=0")


def test_adapters_fill_few_buckets() -> None:
    """Buckets hold what is trained; the frozen weights are in none."""
    sets = ("recipe=mlperf-nvidia-2024", "adapters=lora", "cp=8", "mbs=1", "global_batch=128")
    found = resolve(load_workload("llama2-70b", sets), 1024)
    assert isinstance(found, LanguageWorkload)
    ops = [op for program in build(found.config).programs for op in program.ops]
    gathers = [op.collective.count for op in ops if op.label == "parameters" and op.collective]
    assert set(gathers) == {1}  # one for each run of layers; as many gigabytes of all weights would be ten
