"""DLRM's own training script as eager PyTorch of 2020 ran it on one GPU.

Known from kernel lists of that program (V100, torch 1.7, batch 2048, DLRM_default and
DLRM_MLPerf): what it launched beyond today's step, and where its host waited for the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from stepsight.program.job import Job, Kernel, Op
from stepsight.workload.dlrm.build import DlrmWorkload, recorded_step
from stepsight.workload.operators.tape import EVALUATE
from stepsight.workload.operators.tensor import Tensor

_LOOKUPS = ("indices", "offsets")
"""Copies of int32 there; a program of today holds them as int64."""
_TARGET = "target"
_LOSSES = ("aten::binary_cross_entropy", "aten::mse_loss")
_READ = "aten::item"


@dataclass(frozen=True)
class Dlrm2020(DlrmWorkload):
    """A DLRM of one rank, sgd and the dot interaction as it ran then."""

    def job(self, device: str = "cuda", *, fused: bool | None = None) -> Job:
        job = super().job(device, fused=fused)
        parameters = recorded_step(self.config, device, True).parameters
        programs = (replace(p, ops=as_in_2020(p.ops, parameters)) for p in job.programs)
        return replace(job, programs=tuple(programs))


def as_in_2020(ops: Sequence[Op], parameters: Sequence[Tensor]) -> tuple[Op, ...]:
    """The same step as it ran then.

    ``.to(device)`` waits for its copy. The target is copied when the loss needs it, gradients are
    cleared when the loss has been read. The interaction's indices are made on the host and
    copied in every step. A bias is spread over the output before its product, the sum that is
    its gradient is an operator of its own, and parameters are updated one by one.
    """
    target = [_waiting(op) for op in ops if op.label == _TARGET]
    cleared = [op for op in ops if _clears(op)]
    before_backward = (_READ,) if any(op.name == _READ for op in ops) else _LOSSES
    made: list[Op] = []
    for op in ops:
        if op.label == _TARGET or _clears(op):
            continue
        if op.name in _LOSSES:
            made += target
        made += _then(op, parameters)
        if op.name in before_backward:
            made += cleared
    return tuple(made)


def _then(op: Op, parameters: Sequence[Tensor]) -> Iterator[Op]:
    """What one operator of today was then."""
    if op.name == "aten::to":
        yield _waiting(op)
    elif op.name == "aten::linear":
        yield replace(op, kernels=tuple(k for gemm in op.kernels for k in (_spread_bias(gemm), gemm)))
    elif op.name == f"{EVALUATE}AddmmBackward0" and op.kernels[-1].family == "reduce":
        yield replace(op, kernels=op.kernels[:-1])
        yield Op("aten::sum", op.kernels[-1:], phase=op.phase, label=op.label)
    elif op.name == "aten::index":
        pairs = op.kernels[0].dim("elements") / op.shapes[0][0]
        index = Kernel.of("copy_h2d", "int64", operator="index", bytes=8 * pairs)
        copy = Op("aten::to", (index,), blocks_host=True, phase=op.phase, label=op.label)
        yield from (copy, copy, op)
    elif op.name == f"{EVALUATE}IndexBackward0":
        yield op
        yield _slice_backward(op)
    elif op.name.startswith("Optimizer.step"):
        yield replace(op, kernels=tuple(_update(p) for p in parameters))
    else:
        yield op


def _clears(op: Op) -> bool:
    return op.name.startswith("Optimizer.zero_grad")


def _waiting(op: Op) -> Op:
    """A copy for which the host waits, of int32 where lookups are copied."""
    kernels = op.kernels
    if op.label in _LOOKUPS:
        kernels = tuple(
            Kernel.of(k.family, "int32", operator=k.operator, stream=k.stream, bytes=k.dim("bytes") / 2)
            for k in kernels
        )
    return replace(op, kernels=kernels, blocks_host=True)


def _spread_bias(gemm: Kernel) -> Kernel:
    outputs, width = gemm.dim("m") * gemm.dim("n"), gemm.dim("n")
    return Kernel.of("elementwise", gemm.dtype, operator="bias", elements=outputs, read_bytes=4 * width,
                     write_bytes=4 * outputs)  # fmt: skip


def _slice_backward(index_backward: Op) -> Op:
    """The gradient of taking all samples of the products: cleared, then copied into."""
    whole = index_backward.kernels[0].dim("bytes")
    fill = Kernel.of("fill", "fp32", bytes=whole)
    copy = Kernel.of("copy_d2d", "fp32", bytes=whole)
    return Op(f"{EVALUATE}SliceBackward0", (fill, copy), phase=index_backward.phase)


def _update(p: Tensor) -> Kernel:
    return Kernel.of("elementwise", "fp32", operator="add", elements=p.elements, read_bytes=2 * p.bytes,
                     write_bytes=p.bytes)  # fmt: skip
