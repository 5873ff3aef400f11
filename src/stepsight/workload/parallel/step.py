"""One training step around any model: zero_grad, forward, backward with buckets, update."""

from __future__ import annotations

from collections.abc import Callable

from stepsight.errors import InputError
from stepsight.program.aten.movement import fill_kernel
from stepsight.program.job import COMPUTE, HOST, Kernel, Wait
from stepsight.workload.graphs import captured_step
from stepsight.workload.operators import optimizers
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.parallel.buckets import Reducer
from stepsight.workload.training import Training

Model = Callable[[Tape], Callable[[], Tensor]]
"""Registers its parameters on the tape and returns the forward pass up to the loss."""


def train_step(
    training: Training, device: str, replicas: int, bucket_mb: float, model: Model, group: str = "world"
) -> Tape:
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
        reducer = Reducer.in_arrival_order(tape, [named[name] for name in arrivals], bucket_mb, group)
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


def start_backward(tape: Tape, loss: Tensor, *, given: bool = False) -> None:
    """From a loss of ones, or (``given``) from a gradient that another stage sent."""
    tape.forget_casts()
    tape.phase = "backward"
    grad = loss.empty_like()
    if not given:
        with tape.op("aten::ones_like", (loss,)):
            tape.call("aten::ones_like", (loss,), fill_kernel(grad))
    tape.backward(loss, grad)
