"""Gradient buckets as DistributedDataParallel builds and reduces them.

After its first step DDP rebuilds its buckets in the order in which gradients arrived:
a first bucket of 1 MB so that communication starts early, then buckets up to the cap. A
bucket's all_reduce starts when its last gradient is in and all buckets before it have
started; after the backward pass each bucket is awaited and copied back to the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepsight.program.aten.movement import copy_kernel, pointwise_kernel
from stepsight.program.job import COMM, COMPUTE, Collective, Wait
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor

FIRST_BUCKET_BYTES = 1024 * 1024
"""torch.distributed._DEFAULT_FIRST_BUCKET_BYTES (torch 2.x)."""
MB = 1024 * 1024


def assign_buckets(sizes: Sequence[int], first_bytes: int, cap_bytes: int) -> list[list[int]]:
    """Fill buckets in order; a bucket is closed once it reaches its limit."""
    buckets: list[list[int]] = []
    current: list[int] = []
    held = 0
    for i, size in enumerate(sizes):
        current.append(i)
        held += size
        if held >= (first_bytes if not buckets else cap_bytes):
            buckets.append(current)
            current, held = [], 0
    return [*buckets, current] if current else buckets


@dataclass(slots=True)
class Reducer:
    """Listens to gradients as they become ready and emits what DDP does with them."""

    tape: Tape
    buckets: list[list[Tensor]]
    group: str = "world"
    _left: list[int] = field(default_factory=list)
    _bucket_of: dict[Tensor, int] = field(default_factory=dict)
    _next: int = 0
    _started: list[int] = field(default_factory=list)

    @classmethod
    def in_arrival_order(
        cls, tape: Tape, arrivals: Sequence[Tensor], bucket_mb: float, group: str = "world"
    ) -> Reducer:
        sizes = [t.bytes for t in arrivals]
        first = FIRST_BUCKET_BYTES if bucket_mb == 25 else int(bucket_mb * MB)
        indices = assign_buckets(sizes, first, int(bucket_mb * MB))
        reducer = cls(tape, [[arrivals[i] for i in bucket] for bucket in indices], group)
        reducer._left = [len(bucket) for bucket in indices]
        for b, bucket in enumerate(reducer.buckets):
            for parameter in bucket:
                reducer._bucket_of[parameter] = b
        return reducer

    def grad_ready(self, parameter: Tensor) -> None:
        """The gradient is scaled by 1/ranks into its bucket; a full bucket is reduced."""
        self.tape.call("aten::mul", (parameter,), pointwise_kernel("mul", (parameter,), parameter))
        self._left[self._bucket_of[parameter]] -= 1
        while self._next < len(self.buckets) and self._left[self._next] == 0:
            size = sum(p.bytes for p in self.buckets[self._next])
            self._next += 1
            with self.tape.suspended_op(), self.tape.op("c10d::allreduce_"):
                flat = Tensor.new((size // 4,), persistent=True)
                self.tape.call("c10d::allreduce_", (flat,))
                collective = Collective("all_reduce", size, self.group, name="bucket")
                self._started.append(self.tape.communicate(collective, Wait(COMM, COMPUTE)))

    def finish(self) -> None:
        """After the backward pass: wait for each bucket and copy it back, parameter by parameter."""
        for started, bucket in zip(self._started, self.buckets, strict=True):
            for i in range(len(bucket)):
                with self.tape.op("aten::as_strided"):  # the views into the reduced bucket
                    if i == 0:
                        self.tape.wait(Wait(COMPUTE, started))
            for parameter in bucket:
                with self.tape.op("torch.distributed.ddp.reducer::copy_bucket_to_grad", (parameter,)):
                    self.tape.call("aten::copy_", (parameter, parameter), copy_kernel(parameter, parameter))
