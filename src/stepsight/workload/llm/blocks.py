"""A pass as operators of a program: condensed kernels, and messages concurrent with or between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from stepsight.dtypes import dtype_bytes
from stepsight.overheads.frameworks import MICRO_BATCH, STEP, extra_us
from stepsight.program.job import COMPUTE, HOST, Collective, Copies, Kernel, Op, Wait
from stepsight.workload.llm.config import FROZEN_BYTES, LanguageConfig
from stepsight.workload.llm.cut import tensors_between
from stepsight.workload.llm.launches import AFTER_WAIT
from stepsight.workload.llm.stages import Run
from stepsight.workload.llm.work import Message, Pass, condensed

GATHER, REDUCE = "parameter gather", "gradient reduce"
"""The streams of ZeRO's collectives: parameters ahead of the compute that needs them, gradients behind."""


class Blocks:
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
        """Host work per micro-batch that no launch covers: fetching it, the schedule, the loss."""
        return self._host_work(MICRO_BATCH)

    def step_work(self) -> list[Op]:
        """Host work per step that no launch covers, after the device is done: loops over parameters."""
        return [replace(op, waits=(Wait(HOST, COMPUTE),)) for op in self._host_work(STEP)]

    def _host_work(self, phase: str) -> list[Op]:
        if not extra_us(self.c.host_profile, phase):
            return []
        return [Op(phase, phase=phase, framework=self.c.host_profile, launches=1)]

    def gather(self, run: Run, phase: str, after: tuple[str, ...] = (COMPUTE,)) -> list[Op]:
        """The run's parameters, in the type they are used in.

        A gather begins when compute reaches the operators before it: one unit is prefetched at a time (FSDP's
        limiter, Megatron's hook before a bucket's forward pass).
        """
        ops = []
        for axis, kind, bytes_, count in gather_messages(self.c, run):
            collective = self.collective(
                axis, kind, bytes_, count=count, stream=GATHER, after=after, name="parameters"
            )
            ops.append(
                self.op(f"c10d::{kind}", phase, collective=collective, launches=3 * count, label="parameters")
            )
        return ops

    def reduce(self, run: Run) -> list[Op]:
        """The run's gradients over the replicas."""
        ops = []
        for axis, kind, bytes_, count in gradient_messages(self.c, run):
            collective = self.collective(axis, kind, bytes_, count=count, stream=REDUCE, name="gradients")
            ops.append(
                self.op(
                    f"c10d::{kind}", "backward", collective=collective, launches=2 * count, label="gradients"
                )
            )
        return ops


def gradient_messages(c: LanguageConfig, run: Run) -> list[tuple[str, str, float, int]]:
    """The reduction of a run's gradients over the replicas: axis, kind, bytes of one, how many.

    Summed, or each rank its share (ZeRO-1 to 3); with smaller groups the shares are summed over the rest.
    """
    s = c.layout
    wide = (c.framework.gradients == "fp32" and s.zero < 3) or not c.training.half
    each = (4.0 if wide else 2.0) * c.trained_share
    apart = run.experts if s.expert > 1 else 0.0
    total = (run.parameters - apart) * each
    axis, kind = ("shard", "reduce_scatter") if s.zero else ("data", "all_reduce")
    count = _pieces(c, run, total)
    found = [(axis, kind, total / count, count)]
    if s.zero and s.data * s.context > s.sharded_over:
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


def gather_messages(c: LanguageConfig, run: Run) -> list[tuple[str, str, float, int]]:
    """The parameters of a run before its forward pass: ZeRO-3's a layer at a time; ZeRO-1 and 2 gather what
    the last update changed."""
    if c.layout.zero < 3:
        return parameter_messages(c, run.parameters - run.experts, run.experts, run.layers)
    count = max(1, run.layers)
    return [("shard", "all_gather", run.parameters * weight_bytes(c) / count, count)]


def parameter_messages(
    c: LanguageConfig, dense: float, experts: float, layers: int
) -> list[tuple[str, str, float, int]]:
    """ZeRO-1 and 2: updated parameters of this many layers back to all ranks that hold them."""
    apart = experts if c.layout.expert > 1 else 0.0
    each = weight_bytes(c) * c.trained_share
    found = []
    for axis, held, over in (
        ("shard", dense + experts - apart, c.layout.sharded_over),
        ("expert data", apart, c.layout.experts_shared_over),
    ):
        if held and over > 1:
            buckets = round(held * gradient_bytes(c) / (c.layout.bucket_mb * 1e6))
            count = max(1, layers if c.layout.zero == 2 or c.framework.flat_reduce else buckets)
            kind = "all_gather"
            if c.framework.broadcasts_parameters:
                kind, count = "broadcast", over
            found.append((axis, kind, held * each / count, count))
    return found


def weight_bytes(c: LanguageConfig) -> float:
    """Bytes of one weight as it is gathered from the ranks that share it."""
    t = c.training
    if t.frozen:
        return FROZEN_BYTES.get(t.frozen_weights, dtype_bytes(t.dtype))
    return 1.0 if t.fp8_weights else 2.0 if t.half else 4.0


def gradient_bytes(c: LanguageConfig) -> float:
    """Bytes of one gradient where buckets are filled."""
    return 4.0 if c.framework.gradients == "fp32" or not c.training.half else 2.0


def owned(c: LanguageConfig, dense: float, experts: float) -> float:
    """Parameters that a rank updates itself, of those it holds."""
    apart = experts if c.layout.expert > 1 else 0.0
    if not c.layout.zero:
        return dense + experts
    return (dense + experts - apart) / c.layout.sharded_over + apart / c.layout.experts_shared_over
