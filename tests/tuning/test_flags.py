"""Flags to paste have the names that the frameworks know (releases of mid-2025), and say what they lack."""

import re
from dataclasses import replace

import pytest

from stepsight.platform.load import load_platform
from stepsight.tuning.api import tune
from stepsight.tuning.evaluate import with_settings
from stepsight.tuning.flags import flags
from stepsight.tuning.trial import Row
from stepsight.workload.files import parse_workload

from .model import DLRM, MODEL

MEGATRON = {
    "untie-embeddings-and-output-weights", "no-gradient-accumulation-fusion", "ckpt-format",
    "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size", "micro-batch-size",
    "global-batch-size", "seq-length", "expert-model-parallel-size", "num-layers-per-virtual-pipeline-stage",
    "sequence-parallel", "use-distributed-optimizer", "use-torch-fsdp2", "overlap-grad-reduce",
    "recompute-granularity", "recompute-method", "recompute-num-layers", "recompute-modules", "bf16", "fp16",
    "fp8-format",
}  # fmt: skip
TORCHTITAN = {
    "parallelism.fsdp_reshard_after_forward",
    "training.global_batch_size", "training.local_batch_size", "training.seq_len",
    "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree",
    "parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree",
    "parallelism.context_parallel_degree", "parallelism.expert_parallel_degree",
    "parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_microbatch_size",
    "activation_checkpoint.mode",
}  # fmt: skip
LAYOUTS = [
    {"parallel.data": 8},
    {"parallel.data": 2, "parallel.tensor": 4, "parallel.sequence_parallel": True, "parallel.zero": 1},
    {"parallel.data": 2, "parallel.pipeline": 4, "training.recompute": "full"},
    {"parallel.data": 2, "parallel.pipeline": 4, "parallel.schedule": "interleaved",
     "parallel.virtual_stages": 2, "parallel.micro_batch": 1, "training.recompute": "selective",
     "training.attention": "fused"},
    {"parallel.data": 8, "parallel.zero": 3, "training.precision": "fp8"},
    {"parallel.data": 4, "parallel.context": 2},
    {"parallel.data": 8, "training.recompute": '["mlp_act","layernorm"]'},
]  # fmt: skip

HERE = load_platform("8xH100-SXM")


def written(settings):
    return {one.framework: one for one in flags(MODEL, Row(settings, "8xH100-SXM"), HERE)}


def _held_gb(settings, framework):
    """What a configuration holds where a framework runs it."""
    document = with_settings(MODEL, {**settings, "training.framework": framework}, "t")
    return parse_workload(document, "t").memory().peak_bytes / 1e9


@pytest.mark.parametrize("settings", LAYOUTS, ids=str)
def test_every_flag_is_one_that_the_framework_knows(settings):
    found = written(settings)
    assert set(re.findall(r"--([\w-]+)", found["Megatron-LM"].text)) <= MEGATRON
    assert set(re.findall(r"--([\w.]+)", found["torchtitan"].text)) <= TORCHTITAN


def test_the_sizes_are_those_of_the_configuration():
    found = written(LAYOUTS[1])
    assert "--tensor-model-parallel-size 4" in found["Megatron-LM"].text
    assert "--sequence-parallel" in found["Megatron-LM"].text


def test_zero_1_of_torchtitan_needs_a_pipeline():
    shared = {"parallel.data": 2, "parallel.zero": 1, "parallel.micro_batch": 1}
    assert "ZeRO 1" in written({**shared, "parallel.tensor": 4})["torchtitan"].lacks
    staged = written({**shared, "parallel.pipeline": 4})["torchtitan"]
    assert not staged.lacks and "data_parallel_shard_degree 2" in staged.text


def test_what_a_framework_cannot_do_is_said():
    found = written(LAYOUTS[4])
    assert not found["Megatron-LM"].lacks
    bubble_free = {"parallel.data": 2, "parallel.pipeline": 4, "parallel.schedule": "zero_bubble"}
    for framework in ("torchtitan", "Megatron-LM"):
        assert "zero-bubble" in written(bubble_free)[framework].lacks
    some = written({"parallel.data": 8, "training.recompute": 1})
    assert "--recompute-method block --recompute-num-layers 1" in some["Megatron-LM"].text
    assert "some layers" in some["torchtitan"].lacks


def test_what_is_lacking_is_written_as_what_holds_no_more_memory():
    second = written({"parallel.data": 8, "parallel.zero": 2})["Megatron-LM"]
    assert "--use-distributed-optimizer" in second.text and "written with ZeRO 1" in second.lacks
    first = written({"parallel.data": 8, "parallel.zero": 1})["torchtitan"]
    assert "data_parallel_shard_degree 8" in first.text and "ZeRO 1" in first.lacks


def test_flags_of_what_would_not_fit_are_not_written():
    """Megatron-LM has no ZeRO 2: where the same does not fit with ZeRO 1, the next that does is written."""
    small = {**LAYOUTS[1], "parallel.micro_batch": 1}
    room = 1.3 * _held_gb(small, "megatron")
    assert _held_gb({"parallel.data": 8, "parallel.zero": 1}, "megatron") > room
    first = Row({"parallel.data": 8, "parallel.zero": 2}, "8xH100-SXM", usable_gb=room)
    split = Row(small, "8xH100-SXM", usable_gb=room)
    found = {one.framework: one for one in flags(MODEL, first, HERE, "t", [first, split])}["Megatron-LM"]
    assert found.text == written(small)["Megatron-LM"].text and not found.lacks
    assert "would need" in found.note and "the best that it can run: dp 2, tp 4" in found.note


def test_zero_2_that_megatron_writes_as_1_is_left_out_where_that_does_not_fit():
    row = Row({"parallel.data": 8, "parallel.zero": 2}, "8xH100-SXM")
    room = _held_gb({"parallel.data": 8, "parallel.zero": 1}, "megatron") - 0.1
    found = {one.framework: one for one in flags(MODEL, replace(row, usable_gb=room), HERE)}
    assert found["Megatron-LM"].text == "" and "left out" in found["Megatron-LM"].note


def test_modules_to_recompute_are_named():
    found = written(LAYOUTS[-1])
    assert (
        "--recompute-granularity selective --recompute-modules mlp_act layernorm" in found["Megatron-LM"].text
    )
    assert "mode selective" in found["torchtitan"].text and "by module" in found["torchtitan"].lacks


def test_flags_have_the_micro_batch_that_the_platform_decides():
    """The row fits with the largest micro-batch that does; so do the flags."""
    answer = tune("llama3-8b", "8xH100-SXM", global_batch=64, over=["tp=1"])
    found = flags(answer.document, answer.best, HERE, "t", answer.rows)
    own = next(one for one in found if one.framework == "torchtitan")
    workload = parse_workload(with_settings(answer.document, answer.best.settings, "t"), "t")
    micro = workload.on(load_platform("8xH100-SXM").spec.gpu).config.micro_batch
    assert f"--training.local_batch_size {micro} " in own.text and not own.note


def test_frameworks_that_were_compared_have_their_own_best():
    rows = [
        Row({"parallel.data": 8, "parallel.zero": zero, "training.framework": name}, "8xH100-SXM",
            step_time_us=us, framework=name)
        for us, zero, name in ((1e6, 3, "megatron"), (2e6, 2, "torchtitan"), (3e6, 3, "torchtitan"))
    ]  # fmt: skip
    found = {one.framework: one for one in flags(MODEL, rows[0], HERE, "t", rows)}
    assert found["torchtitan"].note == "its best, 2,000 ms: dp 8, zero 2, framework torchtitan"
    assert "--use-torch-fsdp2" in found["Megatron-LM"].text
    assert not {one.framework: one for one in flags(MODEL, rows[0], HERE, "t", rows[:1])}["torchtitan"].note


def test_a_dlrm_has_no_such_flags():
    assert flags(DLRM, Row({}, "4xV100-SXM2"), HERE) == []
