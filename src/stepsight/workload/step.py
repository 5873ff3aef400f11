"""One training step around any model: zero_grad, forward, backward with buckets, update; CUDA graphs.

After its first step DDP rebuilds its buckets in the order in which gradients arrived:
a first bucket of 1 MB so that communication starts early, then buckets up to the cap. A
bucket's all_reduce starts when its last gradient is in and all buckets before it have
started; after the backward pass each bucket is awaited and copied back to the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from stepsight.errors import InputError, StepsightError
from stepsight.program.aten.movement import copy_kernel, fill_kernel, pointwise_kernel
from stepsight.program.job import COMM, COMPUTE, HOST, Collective, HostTimes, Kernel, Op, Wait
from stepsight.workload.operators import optimizers
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.training import Training

Model = Callable[[Tape], Callable[[], Tensor]]
"""Registers its parameters on the tape and returns the forward pass up to the loss."""


def train_step(training: Training, device: str, replicas: int, bucket_mb: float, model: Model) -> Tape:
    """The tape of one step. With more than one replica gradients are reduced in buckets.

    Buckets follow the order in which gradients arrive, so the step is recorded once
    without communication to learn that order, as DDP learns it in its first step.
    """
    arrivals: list[str] = []
    if replicas > 1:
        rehearsal = training.tape(device)
        rehearsal.on_grad_ready = lambda p: arrivals.append(p.name)
        start_backward(rehearsal, model(rehearsal)())
    tape = training.tape(device)
    tape.grads_kept = training.zero_grad == "zero"
    forward = model(tape)
    tape.phase = "optimizer"
    optimizers.zero_grad(tape, training.optimizer, tape.parameters, training.zero_grad)
    tape.phase = "forward"
    loss = forward()
    if training.read_loss:
        _read(tape, loss)
    reducer = None
    if arrivals:
        named = {p.name: p for p in tape.parameters}
        reducer = Reducer.in_arrival_order(tape, [named[name] for name in arrivals], bucket_mb)
        tape.on_grad_ready = reducer.grad_ready
    start_backward(tape, loss)
    if reducer is not None:
        reducer.finish()
    tape.phase = "optimizer"
    optimizers.step(tape, training.optimizer, tape.parameters, training.fused_optimizer)
    if training.cuda_graph:
        if device != "cuda":
            raise InputError("[training]: cuda_graph", "this platform has no GPU", "leave it out there")
        tape.ops[:] = captured_step(tape.ops)
    if training.synchronize and device == "cuda":
        with tape.op("cudaDeviceSynchronize"):
            tape.wait(Wait(HOST, COMPUTE))
    return tape


def _read(tape: Tape, loss: Tensor) -> None:
    """``loss.item()``: a copy to the host, which waits for it."""
    with tape.op("aten::item", (loss,)):
        copy = Kernel.of("copy_d2h", operator="item", bytes=float(loss.bytes))
        tape.call("aten::_local_scalar_dense", (loss,), *((copy,) if tape.device == "cuda" else ()))
        tape.block_host()


def start_backward(tape: Tape, loss: Tensor) -> None:
    """From a gradient of ones."""
    tape.forget_casts()
    tape.phase = "backward"
    grad = loss.empty_like()
    with tape.op("aten::ones_like", (loss,)):
        tape.call("aten::ones_like", (loss,), fill_kernel(grad))
    tape.backward(loss, grad)


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
    _left: list[int] = field(default_factory=list)
    _bucket_of: dict[Tensor, int] = field(default_factory=dict)
    _next: int = 0
    _started: list[int] = field(default_factory=list)

    @classmethod
    def in_arrival_order(cls, tape: Tape, arrivals: Sequence[Tensor], bucket_mb: float) -> Reducer:
        sizes = [t.bytes for t in arrivals]
        first = FIRST_BUCKET_BYTES if bucket_mb == 25 else int(bucket_mb * MB)
        indices = assign_buckets(sizes, first, int(bucket_mb * MB))
        reducer = cls(tape, [[arrivals[i] for i in bucket] for bucket in indices])
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
                collective = Collective("all_reduce", size, name="bucket")
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


GRAPH_LAUNCH = "cudaGraphLaunch"
INSIDE = HostTimes(0.0, 0.0, 0.0, 0.0, 0.0)
"""An operator that a graph replays: the host does not run it."""


def captured(ops: Sequence[Op], first: int, last: int) -> tuple[Op, ...]:
    """The program with ``ops[first:last]`` replayed by one launch, which stands in the first one's place."""
    if first >= last:
        return tuple(ops)
    for op in ops[first:last]:
        if op.blocks_host or any(wait.waiter == HOST for wait in op.waits):
            raise StepsightError(f"{op.name} makes the host wait and cannot be captured in a CUDA graph")
    launch = replace(ops[first], name=GRAPH_LAUNCH)
    return (
        *ops[:first], launch, *(replace(op, overhead_us=INSIDE) for op in ops[first + 1 : last]), *ops[last:]
    )  # fmt: skip


def captured_step(ops: Sequence[Op]) -> tuple[Op, ...]:
    """All from the last copy of the inputs to the optimizer in one graph."""
    copies = [i for i, op in enumerate(ops) if op.kernels and all(k.family == "copy_h2d" for k in op.kernels)]
    first = copies[-1] + 1 if copies else 0
    last = max((i for i, op in enumerate(ops) if op.kernels or op.collective), default=-1) + 1
    return captured(ops, first, last)
