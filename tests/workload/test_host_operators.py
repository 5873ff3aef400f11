"""Host operators bear the names that a profile of the same step shows, in the same order.

Host overheads are looked up by these names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from stepsight.run.trainer import Trainer
from stepsight.workload.files import load_workload

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["layers=1", "hidden=64", "heads=4", "ffn=96", "vocab=101", "sequence=14", "batch_per_rank=3"]


def profiled_names(trainer: Trainer) -> list[str]:
    trainer.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        trainer.step()
    top: list[str] = []
    end = 0.0
    events: list[Any] = sorted(profiler.events(), key=lambda e: (e.time_range.start, -e.time_range.end))
    for event in events:
        if event.time_range.start >= end:
            top.append(event.name)
            end = event.time_range.end
    return top


@pytest.mark.parametrize("example", ["bert", "gpt2", "xlnet", "gpt", "llama"])
def test_a_transformers_host_operators_are_those_of_a_profile(example: str) -> None:
    change = [*SMALL, "parallel.ranks=1", "training.optimizer=sgd"]
    workload = load_workload(EXAMPLES / f"{example}.toml", change)
    listed = [op.name for op in workload.job(device="cpu").programs[0].ops]
    assert listed == profiled_names(Trainer(workload, 0, "cpu", batches=1))


def test_a_dlrms_host_operators_are_those_of_a_profile() -> None:
    workload = load_workload(EXAMPLES / "dlrm.toml", ["parallel.ranks=1", "batch=64", "tables.rows=1000"])
    listed = [op.name for op in workload.job(device="cpu").programs[0].ops]
    assert listed == profiled_names(Trainer(workload, 0, "cpu", batches=1))
