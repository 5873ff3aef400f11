"""A described step and the same step captured from real torch code are one program.

Known differences, all of the two workloads: the trainer computes a half-precision model's loss outside
autocast and its attention copies other layouts (Llama); index_add copies its target first (XLNet); a fused
optimizer counts its steps on the GPU; the trainer of a DLRM updates rows with torch's own operators.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stepsight.capturing.ranks import Capturing
from stepsight.capturing.request import Request
from stepsight.capturing.step import CapturedStep
from stepsight.program.job import RankProgram
from stepsight.workload.files import Workload, load_workload
from tests.capturing.test_capture import A100

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["layers=1", "hidden=64", "heads=4", "ffn=128", "vocab=1000", "sequence=32", "batch_per_rank=2"]
Sizes = Counter[tuple[str, str, tuple[tuple[str, float], ...]]]


def captured(name: str, changes: list[str]) -> tuple[CapturedStep, Workload]:
    """Rank 0 of the trainer's step, and the workload it trains."""
    arguments = [str(EXAMPLES / name), *changes]
    workload = load_workload(EXAMPLES / name, changes)
    script = Path(__file__).with_name("toml_step.py")
    request = Request(str(script), arguments, A100, workload.ranks, 8)
    step = Capturing(request).step(name, [0])
    assert not step.guessed
    return step, workload


def programs(name: str, changes: list[str]) -> tuple[RankProgram, RankProgram]:
    """Captured and described, rank 0."""
    step, workload = captured(name, changes)
    return step.job.programs[0], workload.job("cuda").programs[0]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2.toml", ["layers=3"]),
        ("bert.toml", ["layers=3"]),
        ("llama.toml", ["layers=2", "parallel.data=1"]),
        ("dlrm.toml", ["parallel.ranks=2", "batch=8192"]),
    ],
)
def test_the_peak_of_memory_is_the_same(name: str, changes: list[str]) -> None:
    use = captured(name, changes)[0].memory[0]
    held = load_workload(EXAMPLES / name, changes).memory().ranks[0]
    workspaces = 2 * 17 * 2**19  # cuBLAS' on an A100, forward and backward; described: part of the context
    assert held.peak_active == pytest.approx(use.peak_active_bytes - workspaces, rel=0.035)
    assert held.peak_reserved == pytest.approx(use.peak_reserved_bytes, rel=0.2)


def kernels(program: RankProgram) -> Sizes:
    made = (k for op in program.ops for k in op.kernels)
    return Counter((k.family, k.dtype, tuple((n, float(v)) for n, v in k.dims)) for k in made)


def collectives(program: RankProgram) -> list[tuple[str, float]]:
    return [(op.collective.kind, float(op.collective.bytes)) for op in program.ops if op.collective]


@pytest.mark.parametrize("name", ["gpt2.toml", "bert.toml"])
def test_every_kernel_operator_and_collective_is_the_same(name: str) -> None:
    captured, described = programs(name, [*SMALL, "parallel.data=2"])
    assert kernels(captured) == kernels(described)
    assert Counter(op.name for op in captured.ops) == Counter(op.name for op in described.ops)
    assert collectives(captured) == collectives(described)


@pytest.mark.parametrize(("name", "most"), [("llama.toml", 6), ("xlnet.toml", 3)])
def test_few_kernels_differ_and_no_operator_but_the_backward_of_a_view(name: str, most: int) -> None:
    captured, described = programs(name, SMALL)
    ours, theirs = kernels(captured), kernels(described)
    assert sum((ours - theirs).values()) + sum((theirs - ours).values()) <= 2 * most
    plain = [
        Counter(op.name.replace("ReshapeAliasBackward0", "ViewBackward0") for op in p.ops)
        for p in (captured, described)
    ]
    assert plain[0] == plain[1]


def test_a_dlrm_exchanges_and_reduces_the_same_and_multiplies_the_same() -> None:
    changes = ["parallel.ranks=2", "tables.rows=1000", "batch=64"]
    captured, described = programs("dlrm.toml", changes)
    assert collectives(captured) == collectives(described)
    products = [{k: n for k, n in kernels(p).items() if k[0] == "gemm"} for p in (captured, described)]
    assert products[0] == products[1]
