"""What a language model's description may say, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.errors import InputError
from stepsight.workload.files import parse_workload
from stepsight.workload.llm.config import LanguageConfig, read_language
from stepsight.workload.llm.workload import LanguageWorkload


def description(**parallel: Any) -> dict[str, Any]:
    return {
        "kind": "transformer", "family": "llama", "layers": 8, "hidden": 512, "heads": 8, "kv_heads": 2,
        "ffn": 1536, "vocab": 1024, "sequence": 256, "global_batch": 16,
        "training": {"framework": "megatron"}, "parallel": parallel,
    }  # fmt: skip


def read(**parallel: Any) -> LanguageConfig:
    return read_language(description(**parallel), "a.toml")


@pytest.mark.parametrize(
    ("recompute", "pipeline", "problem"),
    [(-1, 1, "at least 0"), (9, 1, "holds 8 at most"), (3, 4, "holds [12] at most"), (1.5, 1, "unknown")],
)
def test_no_more_layers_are_run_again_than_a_stage_holds(
    recompute: object, pipeline: int, problem: str
) -> None:
    document = description(pipeline=pipeline)
    document["training"] = {"framework": "megatron", "recompute": recompute}
    with pytest.raises(InputError, match=f"recompute: .*{problem}"):
        read_language(document, "a.toml")


def test_the_axes_multiply_to_the_ranks() -> None:
    assert read(data=2, tensor=4, pipeline=2).ranks == 16


def test_ranks_leave_the_rest_to_data_parallelism() -> None:
    assert read(ranks=16, tensor=4, pipeline=2).layout.data == 2


def test_the_global_batch_is_cut_into_micro_batches() -> None:
    c = read(data=2, pipeline=2, micro_batch=2)
    assert (c.batch_per_rank, c.layout.micro_batches, c.micro_batch) == (8, 4, 2)


def test_fsdp_is_zero_3() -> None:
    assert read(data=4, zero="fsdp").layout == read(data=4, zero=3).layout


def test_parameters_of_llama3_8b() -> None:
    known = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256}
    assert read_language(description() | known, "").model.parameters() == 8_030_261_248


def test_a_plain_data_parallel_llama_stays_operator_by_operator() -> None:
    training = {"precision": "bf16", "framework": "eager"}
    plain = description(data=4) | {"batch_per_rank": 2, "training": training}
    plain.pop("global_batch")
    listed, passes = (parse_workload(d, "a.toml") for d in (plain, description(data=4)))
    assert isinstance(listed, LanguageWorkload) and listed.eager is not None
    assert isinstance(passes, LanguageWorkload) and passes.eager is None


@pytest.mark.parametrize(
    ("parallel", "field"),
    [
        ({"sequence_parallel": True}, "sequence_parallel"),
        ({"async_tensor": True}, "async_tensor"),
        ({"schedule": "afab"}, "schedule"),
        ({"pipeline": 2, "schedule": "interleaved"}, "schedule"),
        ({"pipeline": 2, "schedule": "afab", "virtual_stages": 2}, "virtual_stages"),
        ({"context_kind": "all_to_all"}, "context_kind"),
        ({"data": 2, "zero": 0, "shard_group": 2}, "shard_group"),
        ({"data": 2, "zero": 0, "prefetch": True}, "prefetch"),
        ({"data": 2, "zero": 2, "bucket_mb": 10}, "bucket_mb"),
        ({"data": 2, "zero": 3, "bucket_mb": 10}, "bucket_mb"),
        ({"expert": 2, "data": 2}, "expert"),
        ({"expert_overlap": "some"}, "expert_overlap"),
        ({"tensor": 3}, "tensor"),
        ({"data": 3}, "global_batch"),
        ({"pipeline": 11}, "pipeline"),
        ({"pipeline": 4, "virtual_stages": 2, "micro_batch": 8}, "virtual_stages: .* 2 micro-batches"),
        ({"pipeline": 2, "virtual_stages": 2, "data": 16}, "virtual_stages"),
        ({"zero": 4}, "zero"),
        ({"overlap_gradients": True}, "overlap_gradients"),
        ({"order": ["data"]}, "order"),
        ({"tensors": 2}, "tensors"),
    ],
)
def test_what_has_no_effect_or_cannot_be_is_refused_by_name(parallel: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        read(**parallel)


def test_neighbouring_ranks_lie_on_the_innermost_axis() -> None:
    usual = read(data=2, tensor=2, pipeline=2).layout
    turned = read(data=2, tensor=2, pipeline=2, order=["data", "context", "tensor", "pipeline"]).layout
    assert usual.group("tensor") == (0, 1) and usual.replicas() == (0, 2)
    assert turned.group("tensor") == (0, 2) and turned.replicas() == (0, 1)


@pytest.mark.parametrize(
    ("training", "field"),
    [
        ({"compile": True}, "compile"),
        ({"precision": "bf16", "loss_scaling": True}, "loss_scaling"),
        ({"optimizer": "none", "offload": "optimizer"}, "offload"),
        ({"optimizer": "sgd", "offload": "optimizer"}, "offload"),
        ({"offload": "parameters"}, "offload"),
    ],
)
def test_training_that_is_not_modelled_or_idle_is_refused(training: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        read_language({**description(), "training": training}, "a.toml")


def test_zero_on_one_gpu_shares_out_nothing() -> None:
    from stepsight.workload.files import resolve

    open_ranks = {k: v for k, v in description(zero=1).items() if k != "global_batch"} | {"batch_per_rank": 2}
    workload = parse_workload(open_ranks, "a.toml")
    assert resolve(workload, 8).config.layout.zero == 1
    assert resolve(workload, 1).config.layout.zero == 0


def test_a_mixture_has_a_layer_with_experts() -> None:
    moe = {"experts": 8, "active": 2, "ffn": 512}
    with pytest.raises(InputError, match="dense_layers: of 8 layers none would have experts"):
        read_language({**description(), "moe": {**moe, "dense_layers": 8}}, "a.toml")
    assert read_language({**description(), "moe": {**moe, "dense_layers": 7}}, "a.toml").model.has_experts(7)


def test_buckets_are_the_framework_s_unless_they_are_stated() -> None:
    assert read(data=2).layout.bucket_mb == 160.0  # Megatron: 40 million parameters in fp32
    assert read(data=2, bucket_mb=25).layout.bucket_mb == 25.0


def test_what_was_set_is_among_what_was_assumed() -> None:
    from stepsight.workload.files import load_workload, resolve

    asked = ["moe.imbalance=2", "training.optimizer=sgd"]
    details = resolve(load_workload("mixtral-8x7b", asked), 8).setup().details
    assert {"expert imbalance 2", "sgd optimizer"} <= set(details)
