"""One training step: what the host waits for, gradient buckets, CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsight.errors import InputError, StepsightError
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.program.job import COMPUTE, HOST, Kernel, Op, Wait
from stepsight.workload.files import load_workload, parse_workload
from stepsight.workload.llm.workload import LanguageWorkload
from stepsight.workload.step import FIRST_BUCKET_BYTES, GRAPH_LAUNCH, MB, assign_buckets, captured

EXAMPLE = Path(__file__).parents[2] / "examples" / "dlrm.toml"


def test_reading_the_loss_makes_the_host_wait_for_the_forward_pass():
    ops = load_workload(EXAMPLE, ["training.read_loss=true"]).job().programs[0].ops
    item = next(op for op in ops if op.name == "aten::item")
    assert item.blocks_host
    assert item.phase == "forward"


def test_a_step_that_reads_the_loss_is_never_shorter():
    platform = load_platform("4xV100-SXM2")
    plain = predict(load_workload(EXAMPLE), platform)
    reading = predict(load_workload(EXAMPLE, ["training.read_loss=true"]), platform)
    assert reading.step_time_us >= plain.step_time_us


def test_a_loop_that_times_its_steps_waits_for_the_device_at_their_end():
    ops = load_workload(EXAMPLE, ["training.synchronize=true"]).job().programs[0].ops
    assert ops[-1].waits == (Wait(HOST, COMPUTE),)
    platform = load_platform("4xV100-SXM2")
    plain = predict(load_workload(EXAMPLE), platform)
    assert (
        predict(load_workload(EXAMPLE, ["training.synchronize=true"]), platform).step_time_us
        >= plain.step_time_us
    )
    assert load_workload(EXAMPLE, ["training.synchronize=true"]).job("cpu").programs[0].ops[-1].waits == ()


EXAMPLES = Path(__file__).parents[1] / "data" / "workloads"


def test_a_bucket_is_closed_once_it_reaches_its_limit() -> None:
    assert assign_buckets([3, 3, 4, 4, 10, 1], first_bytes=5, cap_bytes=8) == [[0, 1], [2, 3], [4], [5]]


@given(st.lists(st.integers(1, 100), min_size=1), st.integers(1, 50), st.integers(1, 200))
def test_every_gradient_is_in_one_bucket_in_order(sizes: list[int], first: int, cap: int) -> None:
    buckets = assign_buckets(sizes, first, cap)
    assert [i for bucket in buckets for i in bucket] == list(range(len(sizes)))
    for n, bucket in enumerate(buckets):
        assert sum(sizes[i] for i in bucket[:-1]) < (first if n == 0 else cap)


def test_the_first_bucket_is_small_and_reduced_early() -> None:
    ops = load_workload(EXAMPLES / "bert.toml").job().programs[0].ops
    reduced = [op.collective.bytes for op in ops if op.collective is not None]
    parameters = sum(reduced) / 4
    assert 100e6 < parameters < 120e6  # BERT-base
    first_backward = next(i for i, op in enumerate(ops) if op.phase == "backward")
    first = next(i for i, op in enumerate(ops) if op.collective is not None)
    assert first - first_backward < 40
    assert reduced[0] >= FIRST_BUCKET_BYTES
    assert all(size >= 25 * MB for size in reduced[1:-1])


def test_every_bucket_is_awaited_after_the_backward_pass() -> None:
    ops = load_workload(EXAMPLES / "gpt2.toml").job().programs[0].ops
    started = [i for i, op in enumerate(ops) if op.collective is not None]
    awaited = [w.on for op in ops for w in op.waits if w.waiter == COMPUTE]
    assert awaited == started
    assert Wait("comm", COMPUTE) in ops[started[0]].waits


def small(**training: object) -> dict[str, object]:
    return {
        "kind": "dlrm", "batch": 512, "dense": {"features": 16, "bottom": [64, 32], "top": [64, 1]},
        "tables": [{"rows": 1000, "dim": 32, "count": 4}], "training": training, "parallel": {"ranks": 2},
    }  # fmt: skip


def test_a_graph_keeps_the_kernels_and_frees_the_host():
    eager, graphed = (
        predict(parse_workload(small(cuda_graph=on), "x"), load_platform("2xA100-SXM4-40G"))
        for on in (False, True)
    )
    launched = [
        [k.operator for op in p.timeline.priced.job.programs[0].ops for k in op.kernels]
        for p in (eager, graphed)
    ]
    assert launched[0] == launched[1]
    assert graphed.step_time_us < 0.6 * eager.step_time_us  # a step of small kernels is bound by its host
    names = [op.name for op in graphed.timeline.priced.job.programs[0].ops]
    assert names.count(GRAPH_LAUNCH) == 1


def test_a_step_bound_by_its_gpu_gains_nothing():
    sizes = ("batch=65536", "dense.top=[4096,4096,1]")
    eager, graphed = (
        predict(load_workload("examples/dlrm.toml", (*sizes, f"training.cuda_graph={on}")),
                load_platform("4xV100-SXM2-16G")).step_time_us
        for on in ("false", "true")
    )  # fmt: skip
    assert graphed <= eager * (1 + 1e-9)
    assert graphed > 0.97 * eager


def test_transformers_capture_too():
    overrides = ("sequence=128", "batch_per_rank=1", "parallel.data=1")
    eager, graphed = (
        load_workload("examples/gpt2.toml", (*overrides, f"training.cuda_graph={on}"))
        for on in ("false", "true")
    )
    assert isinstance(graphed, LanguageWorkload)
    platform = load_platform("1xH100-SXM")
    assert predict(graphed, platform).step_time_us < predict(eager, platform).step_time_us


def test_what_makes_the_host_wait_cannot_be_captured():
    read = Op("aten::item", (Kernel.of("copy_d2h", bytes=4.0),), waits=(Wait(HOST, COMPUTE),))
    with pytest.raises(StepsightError, match="cannot be captured"):
        captured([Op("aten::add"), read], 0, 2)
    with pytest.raises(InputError, match="cuda_graph"):
        parse_workload(small(cuda_graph=True, read_loss=True), "x")


def test_a_cpu_has_no_graphs():
    with pytest.raises(InputError, match="no GPU"):
        parse_workload(small(cuda_graph=True), "x").job("cpu")


def language(graph: bool, **more: object) -> dict[str, object]:
    document = {
        "kind": "transformer", "family": "llama", "layers": 8, "hidden": 512, "heads": 8, "ffn": 1376,
        "vocab": 1024, "sequence": 128, "batch_per_rank": 1,
        "training": {"framework": "nanotron", "attention": "flash2", "cuda_graph": graph},
        "parallel": {"data": 2},
    }  # fmt: skip
    return {**document, **more}


def test_language_models_capture_each_pass():
    """A small model is bound by its host; captured, it is bound by its kernels."""
    eager, graphed = (
        predict(parse_workload(language(on), "x"), load_platform("2xH100-SXM")).step_time_us
        for on in (False, True)
    )
    assert graphed < 0.9 * eager


@pytest.mark.parametrize(
    ("training", "parallel", "reason"),
    [
        ({"stack": "torchrec", "loss": "bce_logits"}, {"ranks": 2}, "sizes of the indices"),
        ({"stack": "torchrec", "loss": "bce_logits"}, {"ranks": 1}, "come from the host"),
        ({}, {"ranks": 2, "input_dist": True}, "sizes of the indices"),
    ],
)
def test_dlrms_that_cannot_be_captured_say_why(training, parallel, reason):
    with pytest.raises(InputError, match=reason):
        parse_workload({**small(cuda_graph=True, **training), "parallel": parallel}, "x")
