"""A pass, ZeRO's exchanges and the update as operators of a program.

Kernels of a pass are condensed, with messages concurrent with them or between them. A step ends with the
gradient norm, the optimizer's update and the parameters' way back to all replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stepsight.constants import area
from stepsight.dtypes import dtype_bytes
from stepsight.overheads.frameworks import MICRO_BATCH, STEP, TENSORS, extra_us
from stepsight.overheads.tables import HOST_GBPS
from stepsight.program.job import COMPUTE, HOST, Collective, Copies, Kernel, Op, Wait
from stepsight.workload.llm.block import Message, Pass, condensed
from stepsight.workload.llm.config import FROZEN_BYTES, LanguageConfig
from stepsight.workload.llm.pieces import PieceWork, Run
from stepsight.workload.llm.pipeline import tensors_between
from stepsight.workload.operators.optimizers import UPDATES

C = area("language")

GATHER, REDUCE = "parameter gather", "gradient reduce"
"""The streams of ZeRO's collectives: parameters ahead of the compute that needs them, gradients after it."""
ZeroMessage = tuple[str, str, float, int]
"""A collective of ZeRO: axis, kind, bytes of one, how many."""
AFTER_WAIT = 2
"""Launches until the device has work again after the host waited for token counts."""


class Emitter:
    """Turns passes into operators; identical passes become the same objects."""

    def __init__(self, c: LanguageConfig) -> None:
        self.c = c
        s = c.layout
        self.spans: Mapping[str, tuple[int, ...]] = {
            "tensor": s.group("tensor"),
            "context": s.group("context"),
            "expert": s.experts(),
            "expert tensor": s.expert_parts(),
            "data": s.replicas(),
            "shard": s.shard(),
            "copies": s.shard_copies(),
            "expert data": s.expert_replicas(),
            "world": tuple(range(s.ranks)),
        }
        self.tensors = tensors_between(c)
        self._passes: dict[Pass, tuple[Op, ...]] = {}

    def collective(
        self,
        axis: str,
        kind: str,
        bytes_: float,
        *,
        count: int = 1,
        dtype: str = "",
        stream: str = "",
        after: tuple[str, ...] = (COMPUTE,),
        name: str = "",
        copies: Copies | None = None,
    ) -> Collective:
        """A collective over an axis, of which the program shows one rank."""
        return Collective(
            kind,
            bytes_,
            axis,
            stream or axis,
            dtype or self.c.training.dtype,
            name=name or f"{axis} {kind}",
            after=after,
            count=count,
            spans=self.spans[axis],
            copies=copies,
        )

    def of(self, work: Pass, phase: str, label: str) -> tuple[Op, ...]:
        """The operators of a pass: its kernels with hidden messages concurrent with them, then messages that
        compute waits for, then those concurrent with which part of its kernels run."""
        if work not in self._passes:
            self._passes[work] = tuple(self._ops(work, phase, label))
        return self._passes[work]

    def _ops(self, work: Pass, phase: str, label: str) -> list[Op]:
        alone = Counter(work.kernels)
        for message, count in work.messages.items():
            for kernel in message.concurrent:
                alone[kernel] -= min(count, alone[kernel])
        hidden = {m: n for m, n in work.messages.items() if m.hidden}
        ops = [self._message(message, count, phase) for message, count in hidden.items()]
        first = self.compute(alone, phase, label)
        ops.append(replace(first, launches=self._launched(first.launches + work.more_launches)))
        ops += [self.join(axis, phase) for axis in dict.fromkeys(m.axis for m in hidden)]
        for message, count in work.messages.items():
            if message.hidden:
                continue
            ops.append(self._message(message, count, phase))
            if message.concurrent:
                concurrent = Counter(message.concurrent)
                ops.append(self.compute({k: n * count for k, n in concurrent.items()}, phase, label))
            ops.append(self.join(message.axis, phase))
        return ops + self._host_waits(work.host_waits, phase)

    def _host_waits(self, waits: int, phase: str) -> list[Op]:
        """The host has waited for the device in every layer, so that it is never ahead of it, and the device
        for the host's next launches; a captured pass reads nothing."""
        if not waits or self.c.training.cuda_graphs:
            return []
        return [self.op("token counts", phase, launches=waits * AFTER_WAIT, waits=(Wait(HOST, COMPUTE),))]

    def _message(self, m: Message, count: int, phase: str) -> Op:
        collective = self.collective(m.axis, m.kind, m.bytes, count=count, dtype=m.dtype, copies=m.copies)
        return self.op(
            f"c10d::{m.kind}", phase, collective=collective, launches=count, label=f"{m.axis} {m.kind}"
        )

    def compute(self, kernels: Mapping[Kernel, int], phase: str, label: str) -> Op:
        kept = {k: n for k, n in kernels.items() if n > 0}
        return self.op(phase, phase, condensed(kept, label), launches=sum(kept.values()), label=label)

    def op(
        self,
        name: str,
        phase: str,
        kernels: tuple[Kernel, ...] = (),
        *,
        collective: Collective | None = None,
        launches: int = 0,
        label: str = "",
        waits: tuple[Wait, ...] = (),
    ) -> Op:
        return Op(
            name,
            kernels,
            collective,
            waits,
            phase=phase,
            label=label,
            framework=self.c.host_profile,
            launches=self._launched(launches),
        )

    def _launched(self, launches: int) -> int:
        """A captured pass is launched at once."""
        return min(launches, 1) if self.c.training.cuda_graphs else launches

    def join(self, stream: str, phase: str) -> Op:
        """Compute goes on when everything queued on a stream is done."""
        return self.op("wait", phase, waits=(Wait(COMPUTE, stream),))

    def next_micro_batch(self) -> list[Op]:
        """Host work per micro-batch that no launch covers: fetching it, the schedule, the loss.

        Where ranks are sent the batch's sizes, the host waits for the device to read them.
        """
        waits = (Wait(HOST, COMPUTE),) if self.c.framework.reads_sizes else ()
        return [replace(op, waits=waits) for op in self._host_work(MICRO_BATCH)]

    def step_work(self, works: Sequence[PieceWork]) -> list[Op]:
        """Host work per step that no launch covers, after the device is done: its loops over parameters."""
        found = self._host_work(STEP) + self._host_work(TENSORS, looped_tensors(self.c, works))
        return [replace(op, waits=(Wait(HOST, COMPUTE),)) for op in found]

    def _host_work(self, phase: str, times: int = 1) -> list[Op]:
        if not times or not extra_us(self.c.host_profile, phase):
            return []
        return [Op(phase, phase=phase, framework=self.c.host_profile, launches=times)]

    def gather(self, run: Run, phase: str, after: tuple[str, ...] = (COMPUTE,)) -> list[Op]:
        """The run's parameters, in the type they are used in.

        A gather begins when compute reaches the operators before it: one unit is prefetched at a time (FSDP's
        limiter, Megatron's hook before a bucket's forward pass).
        """
        found = gather_messages(self.c, run)
        return self._exchanged(found, GATHER, phase, "parameters", launches=3, after=after)

    def reduce(self, run: Run) -> list[Op]:
        """The run's gradients over the replicas."""
        found = gradient_messages(self.c, run)
        return self._exchanged(found, REDUCE, "backward", "gradients", launches=2)

    def _exchanged(
        self, messages: list[ZeroMessage], stream: str, phase: str, name: str, *, launches: int,
        after: tuple[str, ...] = (COMPUTE,),
    ) -> list[Op]:  # fmt: skip
        ops = []
        for axis, kind, bytes_, count in messages:
            collective = self.collective(
                axis, kind, bytes_, count=count, stream=stream, after=after, name=name
            )
            ops.append(
                self.op(f"c10d::{kind}", phase, collective=collective, launches=launches * count, label=name)
            )
        return ops


def gradient_messages(c: LanguageConfig, run: Run) -> list[ZeroMessage]:
    """The reduction of a run's gradients over the replicas.

    Summed, or each rank its share (ZeRO-1 to 3); with smaller groups the shares are summed over the rest.
    """
    s = c.layout
    each = (2.0 if s.zero == 3 and c.training.half else gradient_bytes(c)) * c.trained_share
    apart = run.experts if s.expert > 1 else 0.0
    total = (run.parameters - apart) * each
    axis, kind = ("shard", "reduce_scatter") if s.zero else ("data", "all_reduce")
    if s.zero == 1 and c.framework.sums_copies:
        axis, kind = "data", "all_reduce"
    count = _pieces(c, run, total)
    found = [(axis, kind, total / count, count)]
    if axis == "shard" and s.data * s.context > s.sharded_over:
        found.append(("copies", "all_reduce", total / s.sharded_over / count, count))
    if apart and s.experts_shared_over > 1:
        count = _pieces(c, run, apart * each)
        found.append(("expert data", kind, apart * each / count, count))
    return found


def _pieces(c: LanguageConfig, run: Run, bytes_: float) -> int:
    """Into how many messages a run's gradients are cut: layers where they are shared out, else buckets."""
    if c.layout.zero < 3 and c.framework.flat_reduce:
        return 1
    return max(1, run.layers if c.layout.zero >= 2 else round(bytes_ / (c.layout.bucket_mb * 1e6)))


def gather_messages(c: LanguageConfig, run: Run) -> list[ZeroMessage]:
    """The parameters of a run before its forward pass: ZeRO-3's a layer at a time; ZeRO-1 and 2 gather what
    the last update changed."""
    if c.layout.zero < 3:
        return parameter_messages(c, run.parameters - run.experts, run.experts, run.layers)
    count = max(1, run.layers)
    return [("shard", "all_gather", run.parameters * weight_bytes(c) / count, count)]


def parameter_messages(c: LanguageConfig, dense: float, experts: float, layers: int) -> list[ZeroMessage]:
    """ZeRO-1 and 2: updated parameters of this many layers back to all ranks that hold them."""
    apart = experts if c.layout.expert > 1 else 0.0
    each = weight_bytes(c) * c.trained_share
    found = []
    for axis, held, over in (
        ("shard", dense + experts - apart, c.layout.sharded_over),
        ("expert data", apart, c.layout.experts_shared_over),
    ):
        if held and over > 1:
            buckets = round(held * c.trained_share * gradient_bytes(c) / (c.layout.bucket_mb * 1e6))
            count = max(1, layers if c.layout.zero == 2 or c.framework.flat_reduce else buckets)
            kind = "all_gather"
            if c.framework.broadcasts_parameters:
                kind, count = "broadcast", over
            elif c.framework.flat_gather and c.layout.zero == 1:
                count = 1
            found.append((axis, kind, held * each / count, count))
    return found


def weight_bytes(c: LanguageConfig) -> float:
    """Bytes of one weight as it is gathered from the ranks that share it."""
    t = c.training
    if t.frozen:
        return FROZEN_BYTES.get(t.frozen_weights, dtype_bytes(t.dtype))
    return 1.0 if t.fp8_weights else 2.0 if t.half else 4.0


def gradient_bytes(c: LanguageConfig) -> float:
    """Bytes of one gradient as replicas sum it."""
    wide = c.framework.gradients == "fp32" or (c.framework.sums_copies and c.layout.zero == 1)
    return 4.0 if wide or not c.training.half else 2.0


def owned(c: LanguageConfig, dense: float, experts: float) -> float:
    """Parameters that a rank updates itself, of those it holds."""
    apart = experts if c.layout.expert > 1 else 0.0
    if not c.layout.zero:
        return dense + experts
    return (dense + experts - apart) / c.layout.sharded_over + apart / c.layout.experts_shared_over


TENSORS_PER_LAYER = 9
"""Parameter tensors of a layer, for the multi-tensor launcher."""
TENSORS_PER_EXPERT = 2


def looped_tensors(c: LanguageConfig, works: Sequence[PieceWork]) -> int:
    """Parameter tensors (or parts) in a rank's share of Megatron's distributed optimizer; each expert has its
    own. An optimizer that shares nothing out copies them by multi-tensor kernels."""
    t = c.training
    if not c.layout.zero or c.framework.name != "megatron" or t.optimizer == "none" or t.frozen:
        return 0
    runs = [run for w in works for run in w.forward]
    found = TENSORS_PER_LAYER * sum(run.layers for run in runs) / c.layout.sharded_over
    if c.model.experts:
        parts = c.layout.expert_tensor if c.layout.expert > 1 else c.layout.tensor
        held = parts * sum(run.experts for run in runs) / c.model.expert_parameters
        found += TENSORS_PER_EXPERT * held / c.layout.experts_shared_over
    return round(found)


GPUS_PER_HOST = 8


def update_ops(c: LanguageConfig, emit: Emitter, works: Sequence[PieceWork], stage: int) -> list[Op]:
    """What one stage does after its last backward pass."""
    s = c.layout
    dense, experts = sum(w.parameters for w in works), sum(w.expert_parameters for w in works)
    ops = _tied(c, emit, stage)
    if c.training.optimizer == "none":
        return ops
    layers = sum(run.layers for w in works for run in w.forward)
    if c.training.clipping and s.ranks > 1:
        norm = emit.collective("world", "all_reduce", 4.0, dtype="fp32")
        ops.append(
            emit.op("c10d::all_reduce", "optimizer", collective=norm, launches=1, label="gradient norm")
        )
        ops.append(emit.join("world", "optimizer"))
    op = emit.compute(Counter(update_kernels(c, dense, experts, layers)), "optimizer", "update")
    ops.append(
        emit.op("optimizer", "optimizer", op.kernels, launches=update_launches(layers), label="update")
    )
    ops += _host_update(c, dense, experts)
    if s.gathers_updated and not s.prefetch:
        for axis, kind, bytes_, count in parameter_messages(c, dense, experts, layers):
            back = emit.collective(axis, kind, bytes_, count=count, name="parameters")
            ops.append(
                emit.op(f"c10d::{kind}", "optimizer", collective=back, launches=count, label="parameters")
            )
            ops.append(emit.join(axis, "optimizer"))
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
    threads = C.HOST_UPDATE_GBPS / min(c.ranks, GPUS_PER_HOST) / HOST_GBPS
    return [Op("optimizer", phase="optimizer", waits=(Wait(HOST, COMPUTE),), host_bytes=bytes_ / threads)]


def _tied(c: LanguageConfig, emit: Emitter, stage: int) -> list[Op]:
    """A tied embedding that lies on the first and the last stage: its gradients are summed."""
    s = c.layout
    if not c.model.tied or s.pipeline == 1 or stage not in (0, s.pipeline - 1):
        return []
    grad = 4.0 if c.framework.gradients == "fp32" else 2.0
    bytes_ = grad * c.padded_vocab / s.tensor * c.model.hidden
    ends = (0, (s.pipeline - 1) * s.stride("pipeline"))
    whole = emit.collective("world", "all_reduce", bytes_, name="tied embeddings")
    both = replace(whole, spans=ends, group="ends", stream="ends")
    return [
        emit.op("c10d::all_reduce", "backward", collective=both, launches=1, label="tied embeddings"),
        emit.join("ends", "backward"),
    ]
