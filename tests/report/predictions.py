"""Predictions of small jobs that the reports are tested on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from stepsight.platform.load import load_platform
from stepsight.prediction.answer import Prediction, predict_job
from stepsight.program.job import Collective, Job, Kernel, Op, RankProgram, Wait

EXAMPLES = Path(__file__).parents[2] / "examples"


def program(size: int, *, name: str = "aten::linear") -> RankProgram:
    """Two operators, an all-reduce after them, and an update that waits for it."""
    gemm = Kernel.of("gemm", "fp32", batch=1, m=size, n=1024, k=1024, operator="linear")
    reduce = Collective("all_reduce", 4e6, name="gradients")
    update = Kernel.of("gemm", "fp32", batch=1, m=64, n=64, k=64, operator="update")
    return RankProgram(
        (
            Op(name, (gemm,)), Op(name, (gemm, gemm)), Op("c10d::allreduce_", collective=reduce),
            Op("Optimizer.step", (update,), waits=(Wait("compute", 2),), phase="optimizer"),
        )
    )  # fmt: skip


def uneven(sizes: list[int], *, synchronous: bool = False) -> Prediction:
    """Ranks with matrices of these sizes on as many A100s; the smaller ones wait."""
    nodes = -(-len(sizes) // 8)
    platform = load_platform(f"{nodes}x8xA100-SXM4-40G-200G")
    if synchronous:
        host = dataclasses.replace(platform.spec.host, synchronous=True)
        platform = dataclasses.replace(platform, spec=dataclasses.replace(platform.spec, host=host))
    shared = {size: program(size) for size in sizes}
    found = predict_job(Job.of([shared[size] for size in sizes]), platform)
    return dataclasses.replace(found, workload="uneven")
