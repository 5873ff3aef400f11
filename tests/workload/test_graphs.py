"""A captured step is launched once; its kernels and their order stay."""

import pytest

from stepsight.errors import InputError, StepsightError
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.program.job import COMPUTE, HOST, Kernel, Op, Wait
from stepsight.workload.files import load_workload, parse_workload
from stepsight.workload.llm.workload import LanguageWorkload
from stepsight.workload.step import GRAPH_LAUNCH, captured


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
