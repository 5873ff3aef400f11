"""DLRM's step as eager PyTorch of 2020 ran it."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lab.score.e2e.dlrm import workload
from lab.score.e2e.eager_2020 import Dlrm2020
from stepsight.program.job import Op
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.dlrm.config import read_dlrm

SMALL: dict[str, Any] = {
    "kind": "dlrm", "batch": 64, "dense": {"features": 8, "bottom": [16, 4], "top": [8, 1]},
    "tables": [{"count": 3, "rows": 100, "dim": 4, "pooling": 2.0}],
    "training": {"loss": "mse", "zero_grad": "zero", "read_loss": True, "sparse_update": "scattered",
                 "synchronize": True},
}  # fmt: skip


def ops_of(document: dict[str, Any], made: type[DlrmWorkload] = Dlrm2020, **training: object) -> list[Op]:
    document = {**document, "training": {**document["training"], **training}}
    return list(made(read_dlrm(document, "made")).job("cuda").programs[0].ops)


def plain(op: Op) -> str:
    return op.name.split(": ")[-1]


def test_the_host_waits_for_every_copy() -> None:
    copies = [op for op in ops_of(SMALL) if op.name == "aten::to"]
    assert len(copies) == 6
    assert all(op.blocks_host for op in copies)


def test_lookups_are_copied_as_int32() -> None:
    then, now = (
        sum(k.dim("bytes") for op in ops_of(SMALL, made) for k in op.kernels if k.operator == "indices")
        for made in (Dlrm2020, DlrmWorkload)
    )
    assert then == now / 2


def test_the_target_is_copied_for_the_loss_and_gradients_are_cleared_after_it_is_read() -> None:
    order = [op.label if op.label == "target" else plain(op) for op in ops_of(SMALL)]
    middle = order[order.index("target") :][:5]
    cleared = "Optimizer.zero_grad#SGD.zero_grad"
    assert middle == ["target", "aten::mse_loss", "aten::item", cleared, "aten::ones_like"]


def test_without_reading_the_loss_gradients_are_still_cleared_before_the_backward_pass() -> None:
    order = [plain(op) for op in ops_of(SMALL, read_loss=False)]
    assert order.index("aten::mse_loss") < order.index("Optimizer.zero_grad#SGD.zero_grad")


def test_every_parameter_has_its_own_update() -> None:
    (step,) = (op for op in ops_of(SMALL) if op.name.startswith("Optimizer.step"))
    assert len(step.kernels) == 8


@pytest.mark.parametrize("model", ["DLRM_default", "DLRM_MLPerf"])
def test_operators_launch_what_the_kernel_list_of_the_same_program_shows(
    measured_data: Path, model: str
) -> None:
    with (measured_data / "kernels" / f"v100_{model}_2048_kernels.csv").open() as file:
        listed = [r for r in csv.DictReader(file) if not r["kernel"].startswith(("Mem", "void splitK"))]
    there: Counter[str] = Counter()
    for row in listed:
        there[row["op"].rstrip("0")] += int(row["launches"])
    here: Counter[str] = Counter()
    for op in workload(model, 2048).job().programs[0].ops:
        here[plain(op).rstrip("0")] += len(op.kernels)
    for name in (
        "aten::linear", "aten::relu", "aten::sum", "aten::bmm", "aten::cat", "AddmmBackward",
        "ReluBackward", "BmmBackward", "LookupFunction", "LookupFunctionBackward",
        "torch::autograd::AccumulateGrad", "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad",
    ):  # fmt: skip
        assert here[name] == there[name], name
