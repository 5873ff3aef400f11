"""Tensor groups, pipeline stages, micro batches and recomputation."""

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


def collectives(job: Job, program: int, kind: str, group: str = "") -> list[float]:
    found = [op.collective for op in job.programs[program].ops if op.collective]
    return [c.bytes for c in found if c.kind == kind and c.group.startswith(group)]


def test_ranks_are_numbered_tensor_then_data_then_stage() -> None:
    made = job("parallel.tensor=2", "parallel.data=2", "parallel.pipeline=2", "parallel.micro_batch=8")
    assert [g.ranks for g in made.groups["tensor"]] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [g.ranks for g in made.groups["data"]] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert [g.ranks for g in made.groups["boundary 0"]] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert made.program_of_rank == (0, 0, 0, 0, 1, 1, 1, 1)


def test_a_layer_sums_over_its_tensor_group_twice_each_way() -> None:
    base = ["parallel.tensor=2", "parallel.data=1", "parallel.pipeline=1", "parallel.micro_batch=8"]
    one = collectives(job(*base, "layers=1", "training.recompute=false"), 0, "all_reduce", "tensor")
    two = collectives(job(*base, "layers=2", "training.recompute=false"), 0, "all_reduce", "tensor")
    again = collectives(job(*base, "layers=2", "training.recompute=true"), 0, "all_reduce", "tensor")
    assert len(two) - len(one) == 4
    assert len(again) - len(two) == 4  # both layers' forward sums once more
    assert one[0] == 16 * 8 * 64 * 2


@pytest.mark.parametrize(("stages", "micro"), [(2, 1), (2, 4), (4, 2), (4, 8)])
def test_both_sides_of_a_boundary_make_the_same_exchanges(stages: int, micro: int) -> None:
    made = job(
        f"parallel.pipeline={stages}",
        "parallel.data=1",
        "parallel.tensor=1",
        f"parallel.micro_batch={8 // micro}",
    )
    for boundary in range(stages - 1):
        sides = [collectives(made, s, "send_recv", f"boundary {boundary}") for s in (boundary, boundary + 1)]
        assert len(sides[0]) == len(sides[1]) > 0


def test_every_micro_batch_is_computed_once_forward_and_once_backward() -> None:
    whole = job("parallel.pipeline=1", "parallel.data=1", "parallel.tensor=1", "parallel.micro_batch=8")
    cut = job("parallel.pipeline=1", "parallel.data=1", "parallel.tensor=1", "parallel.micro_batch=2")

    def work(made: Job) -> float:
        gemms = [k for op in made.programs[0].ops for k in op.kernels if k.family == "gemm"]
        return sum(k.dim("batch") * k.dim("m") * k.dim("n") * k.dim("k") for k in gemms)

    assert work(whole) == work(cut)
    assert len(cut.programs[0]) > 3 * len(whole.programs[0])


def test_half_precision_parameters_are_updated_through_fp32_copies() -> None:
    made = job("parallel.pipeline=1", "parallel.data=1", "parallel.tensor=1", "parallel.micro_batch=8")
    kernels = [k for op in made.programs[0].ops for k in op.kernels]
    assert {k.dtype for k in kernels if k.family == "gemm"} == {"fp16"}
    names = {k.operator for k in kernels if k.family == "optimizer"}
    assert names == {"multi_tensor_scale", "multi_tensor_l2norm", "fused_adam_", "multi_tensor_copy"}


@pytest.mark.parametrize("family", ["gpt2", "gpt", "opt"])
def test_tensor_parallelism_divides_the_products_of_every_decoder(family: str) -> None:
    def work(tensor: int) -> float:
        made = job(f"family={family}", f"parallel.tensor={tensor}", "parallel.data=1", "head=none",
                   "training.loss=none")  # fmt: skip
        gemms = [k for op in made.programs[0].ops for k in op.kernels if k.family == "gemm"]
        return sum(k.dim("batch") * k.dim("m") * k.dim("n") * k.dim("k") for k in gemms)

    assert work(1) == 4 * work(4)


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
