"""The end of a step: gradient norm, optimizer update, and the parameters' way back to all replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from stepsight.overheads.tables import HOST_GBPS
from stepsight.program.job import COMPUTE, HOST, Kernel, Op, Wait
from stepsight.workload.llm.blocks import Blocks, owned, parameter_messages
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.optimizers import UPDATES
from stepsight.workload.llm.stages import PieceWork

TENSORS_PER_LAYER = 9
"""Parameter tensors of a layer, for the multi-tensor launcher."""
GPUS_PER_HOST = 8
HOST_UPDATE_GBPS = 110.0
"""What the two sockets of a node reach together in a vectorised Adam: ten billion parameters of 28 bytes in
2.6 s (Ren et al. 2021, ZeRO-Offload, table 4)."""


def update_ops(c: LanguageConfig, blocks: Blocks, works: Sequence[PieceWork], stage: int) -> list[Op]:
    """What one stage does after its last backward pass."""
    s = c.layout
    dense, experts = sum(w.parameters for w in works), sum(w.expert_parameters for w in works)
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
    op = blocks.compute(Counter(update_kernels(c, dense, experts, layers)), "optimizer", "update")
    ops.append(
        blocks.op("optimizer", "optimizer", op.kernels, launches=update_launches(layers), label="update")
    )
    ops += _host_update(c, dense, experts)
    if s.gathers_updated and not s.prefetch:
        for axis, kind, bytes_, count in parameter_messages(c, dense, experts, layers):
            back = blocks.collective(axis, kind, bytes_, count=count, name="parameters")
            ops.append(
                blocks.op(f"c10d::{kind}", "optimizer", collective=back, launches=count, label="parameters")
            )
            ops.append(blocks.join(axis, "optimizer"))
    return ops


def update_launches(layers: int) -> int:
    """Launches of the update: multi-tensor kernels over all parameters, four passes."""
    return -(-layers * TENSORS_PER_LAYER // 36) * 4 + 4


def update_kernels(c: LanguageConfig, dense: float, experts: float, layers: int) -> list[Kernel]:
    """Norm and scaling of the gradients, the fused update, copies to the parameters, zeroed gradients."""
    trained = c.trained_share
    held, mine = trained * (dense + experts), trained * owned(c, dense, experts)
    tensors = max(1, layers * TENSORS_PER_LAYER)
    grad = 4 if c.framework.gradients == "fp32" or not c.training.half else 2
    state = UPDATES[c.training.optimizer]

    def one(name: str, elements: float, read: float, write: float) -> Kernel:
        return Kernel.of(
            "optimizer",
            "fp32",
            operator=name,
            elements=elements,
            read_bytes=read * elements,
            write_bytes=write * elements,
            tensors=tensors,
        )

    kernels = []
    if c.training.loss_scaling:
        kernels.append(one("unscale", mine, grad, 4))
    if c.training.clipping:
        kernels += [one("l2norm", mine, grad, 0), one("scale", mine, grad, grad)]
    if c.training.offload == "optimizer":
        return [
            *kernels,
            Kernel.of("copy_d2h", "fp32", operator="gradients", bytes=grad * mine),
            Kernel.of("copy_h2d", "fp32", operator="parameters", bytes=(2 if c.training.half else 4) * mine),
            Kernel.of("fill", "fp32", bytes=grad * held),
        ]
    if c.training.optimizer == "lamb":  # update, both norms, and the step by their ratio
        kernels += [one("update", mine, grad + 12, 12), one("norms", mine, 8, 0), one("ratio", mine, 8, 4)]
    else:
        each = c.training.state_bytes * (1 + state)
        kernels.append(one("update", mine, grad + each, each))
    if c.training.copies_weights:
        kernels.append(one("copy", mine, 4, 2))
    kernels.append(Kernel.of("fill", "fp32", bytes=grad * held))
    return kernels


def _host_update(c: LanguageConfig, dense: float, experts: float) -> list[Op]:
    """Offloaded: the host's update of what one rank holds, all ranks of a node at once."""
    if c.training.offload != "optimizer":
        return []
    mine = owned(c, dense, experts) * c.trained_share
    bytes_ = mine * 4 * (4 + 2 * UPDATES[c.training.optimizer] - 1)
    threads = HOST_UPDATE_GBPS / min(c.ranks, GPUS_PER_HOST) / HOST_GBPS
    return [Op("optimizer", phase="optimizer", waits=(Wait(HOST, COMPUTE),), host_bytes=bytes_ / threads)]


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
