"""Half precision, recomputation and pipeline stages of a small decoder."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsight.program.job import Job
from stepsight.workload.files import load_workload

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["layers=4", "hidden=64", "heads=4", "ffn=128", "vocab=100", "sequence=16", "batch_per_rank=8"]


HALF = ["training.precision=fp16", "training.master_weights=true", "training.optimizer=adam"]


def job(*change: str) -> Job:
    return load_workload(EXAMPLES / "gpt2.toml", [*SMALL, *HALF, *change]).job()


def test_half_precision_parameters_are_updated_through_fp32_copies() -> None:
    made = job("parallel.pipeline=1", "parallel.data=1", "parallel.tensor=1", "parallel.micro_batch=8")
    kernels = [k for op in made.programs[0].ops for k in op.kernels]
    assert {k.dtype for k in kernels if k.family == "gemm"} == {"fp16"}
    names = {k.operator for k in kernels if k.family == "optimizer"}
    assert names == {"multi_tensor_scale", "multi_tensor_l2norm", "fused_adam_", "multi_tensor_copy"}


def test_recomputation_keeps_only_the_layers_inputs() -> None:
    def activations(*change: str) -> float:
        return load_workload(EXAMPLES / "gpt2.toml", [*SMALL, *change]).memory().ranks[0].activations

    assert activations("training.recompute=true") < 0.6 * activations()


def test_later_stages_hold_fewer_micro_batches() -> None:
    change = [*SMALL, "parallel.pipeline=4", "parallel.micro_batch=1", "parallel.data=1", "parallel.tensor=1"]
    ranks = load_workload(EXAMPLES / "gpt2.toml", change).memory().ranks
    assert ranks[1].activations > ranks[2].activations


@pytest.mark.parametrize(("stages", "sequences"), [(1, 1), (2, 8), (8, 32)])
def test_a_batch_that_nobody_states_fills_the_pipeline(stages: int, sequences: int) -> None:
    workload = load_workload("llama3-8b", [f"parallel.pipeline={stages}", "parallel.data=2"])
    assert workload.config.batch_per_rank == sequences
    assert workload.setup().default_batch
