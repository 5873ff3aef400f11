"""The end of a step: gradient norm, optimizer update, and the parameters' way back to all replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from stepsight.program.job import Kernel, Op
from stepsight.workload.llm.blocks import Blocks, parameter_message
from stepsight.workload.llm.config import ADAPTER_SHARE, LanguageConfig
from stepsight.workload.llm.stages import PieceWork
from stepsight.workload.operators.optimizers import STATE_PER_PARAMETER

TENSORS_PER_LAYER = 9
"""Parameter tensors of a layer, for the multi-tensor launcher."""


def update_ops(c: LanguageConfig, blocks: Blocks, works: Sequence[PieceWork], stage: int) -> list[Op]:
    """What one stage does behind its last backward pass."""
    s = c.layout
    held = sum(w.parameters + w.expert_parameters for w in works)
    ops = _tied(c, blocks, stage)
    if c.training.optimizer == "none":
        return ops
    layers = sum(run.layers for w in works for run in w.forward)
    if c.training.clipping and s.ranks > 1:
        norm = blocks.collective("world", "all_reduce", 4.0, dtype="fp32")
        ops.append(
            blocks.op("c10d::all_reduce", "optimizer", collective=norm, launches=1, label="gradient norm")
        )
        ops.append(blocks.join("world", "optimizer"))
    op = blocks.compute(Counter(update_kernels(c, held, layers)), "optimizer", "update")
    ops.append(
        blocks.op("optimizer", "optimizer", op.kernels, launches=update_launches(layers), label="update")
    )
    if s.zero in (1, 2) and s.sharded_over > 1:
        axis, kind, bytes_, count = parameter_message(c, held)
        back = blocks.collective(axis, kind, bytes_, count=count, name="parameters")
        ops.append(
            blocks.op(f"c10d::{kind}", "optimizer", collective=back, launches=count, label="parameters")
        )
        ops.append(blocks.join(axis, "optimizer"))
    return ops


def update_launches(layers: int) -> int:
    """Launches of the update: multi-tensor kernels over all parameters, four passes."""
    return -(-layers * TENSORS_PER_LAYER // 36) * 4 + 4


def update_kernels(c: LanguageConfig, held: float, layers: int) -> list[Kernel]:
    """Norm and scaling of the gradients, the fused update, copies to the parameters, zeroed gradients."""
    held *= ADAPTER_SHARE if c.training.adapters else 1.0
    mine = held / (c.layout.sharded_over if c.layout.zero else 1)
    tensors = max(1, layers * TENSORS_PER_LAYER)
    grad = 4 if c.framework.gradients == "fp32" or not c.training.half else 2
    state = STATE_PER_PARAMETER[c.training.optimizer]

    def one(name: str, elements: float, read: float, write: float) -> Kernel:
        return Kernel.of(
            "optimizer",
            "fp32",
            name=name,
            elements=elements,
            read_bytes=read * elements,
            write_bytes=write * elements,
            tensors=tensors,
        )

    kernels = []
    if c.training.clipping:
        kernels += [one("l2norm", mine, grad, 0), one("scale", mine, grad, grad)]
    kernels.append(one("update", mine, grad + 4 * (1 + state), 4 * (1 + state)))
    if c.training.half and c.training.master_weights:
        kernels.append(one("copy", mine, 4, 2))
    kernels.append(Kernel.of("fill", "fp32", bytes=grad * held))
    return kernels


def _tied(c: LanguageConfig, blocks: Blocks, stage: int) -> list[Op]:
    """A tied embedding that lies on the first and the last stage: its gradients are summed."""
    s = c.layout
    if not c.model.tied or s.pipeline == 1 or stage not in (0, s.pipeline - 1):
        return []
    grad = 4.0 if c.framework.gradients == "fp32" else 2.0
    bytes_ = grad * c.padded_vocab / s.tensor * c.model.hidden
    ends = (0, (s.pipeline - 1) * s.stride("pipeline"))
    whole = blocks.collective("world", "all_reduce", bytes_, name="tied embeddings")
    both = replace(whole, spans=ends, group="ends", stream="ends")
    return [
        blocks.op("c10d::all_reduce", "backward", collective=both, launches=1, label="tied embeddings"),
        blocks.join("ends", "backward"),
    ]
