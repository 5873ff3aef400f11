"""The rank programs list the calls that the same model really makes, one by one.

A real step of the torch model on the CPU is recorded below autograd; views and allocations
launch nothing and are left out (``stepsight.run.trainer`` lists them).
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from stepsight.run.trainer import Trainer
from stepsight.workload.files import load_workload
from tests.run.recorded import Recorder, program_calls

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = [
    "layers=2", "hidden=64", "heads=4", "ffn=96", "vocab=101", "sequence=14", "batch_per_rank=3",
    "parallel.data=1",
]  # fmt: skip
ODD = ["batch_per_rank=1", "sequence=13", "heads=1", "vocab=37", "training.optimizer=sgd"]
FLASH = ["training.attention=flash", "training.dropout=0.0", "training.optimizer=adagrad"]
LOWER = ["training.precision=bf16", "training.fused_optimizer=true"]
BOTH = ["training.precision=bf16", "training.attention=flash", "training.dropout=0.0"]
BARE = ["training.optimizer=none", "training.loss=none", "head=none"]
DLRM = ["parallel.ranks=1", "batch=64", "tables.rows=1000", "dense.features=13"]


def differences(path: Path, overrides: list[str]) -> list[str]:
    workload = load_workload(path, overrides)
    trainer = Trainer(workload, 0, "cpu", batches=1)
    trainer.step()
    recorder = Recorder()
    with recorder:
        trainer.step()
    listed = program_calls(workload.job(device="cpu").programs[0].ops)
    wrong = [
        f"{i}: real {real}, listed {mine}"
        for i, (real, mine) in enumerate(zip(recorder.calls, listed, strict=False))
        if real != mine
    ]
    if len(recorder.calls) != len(listed):
        wrong.append(f"{len(recorder.calls)} real calls, {len(listed)} listed")
    return wrong


@pytest.mark.parametrize("family", ["bert", "gpt2", "xlnet", "gpt", "opt", "llama"])
@pytest.mark.parametrize(
    "change", [[], ODD, FLASH, LOWER, BOTH, BARE], ids=["plain", "odd", "flash", "bf16", "bf16 flash", "bare"]
)
def test_a_transformer_makes_the_calls_its_program_lists(family: str, change: list[str]) -> None:
    if family == "xlnet":  # has no fused attention
        change = [c for c in change if "attention" not in c]
    assert (
        differences(EXAMPLES / "gpt2.toml", [*SMALL, "training.framework=eager", f"family={family}", *change])
        == []
    )


def test_grouped_queries_repeat_keys_and_values() -> None:
    assert differences(EXAMPLES / "llama.toml", [*SMALL, "kv_heads=2", "training.attention=eager"]) == []


@pytest.mark.parametrize(
    "change",
    [
        [],
        ["dense.interaction=cat", "training.loss=mse"],
        ["dense.interaction=dcnv2", "dense.cross_rank=16", "training.loss=bce_logits"],
        ["tables.dim=32", "training.optimizer=adam", "training.sparse_optimizer=sgd"],
        ["training.precision=bf16"],
        ["tables.count=1", "batch=1", "tables.pooling=3", "training.zero_grad=zero"],
        ["tables.pooling=2.5", "dense.bottom=[7, 128]", "dense.top=[3, 1]"],
    ],
    ids=["dot", "cat", "dcnv2", "projected", "bf16", "one sample", "odd"],
)
def test_a_dlrm_makes_the_calls_its_program_lists(change: list[str]) -> None:
    assert differences(EXAMPLES / "dlrm.toml", [*DLRM, *change]) == []
