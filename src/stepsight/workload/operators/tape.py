"""A tape of host operators, with the backward pass in the order PyTorch's autograd runs it.

A model's forward is written once, over symbolic tensors. Each function emits its host
operator and leaves a `Node` with the rule for its gradient; `Tape.backward` then visits
nodes as the autograd engine does (latest first; gradients of parameters as soon as they
are ready) and adds gradients that meet at a tensor.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from math import prod
from typing import Any, TypeVar, cast

from stepsight.program.aten.movement import pointwise_kernel
from stepsight.program.aten.rows import reduce_kernel
from stepsight.program.job import Call, Collective, Kernel, Op, RankProgram, Wait
from stepsight.workload.operators.tensor import Lifetimes, Shape, Tensor, same_layout

EVALUATE = "autograd::engine::evaluate_function: "
"""How a profiler names the host operator that runs one node of the backward pass."""
ACCUMULATE = "torch::autograd::AccumulateGrad"

Grads = Sequence["Tensor | None"]
Rule = Callable[..., Grads]
"""From the gradients of a function's outputs to those of its inputs; None: no gradient. That of a single
output is always there."""
Function = TypeVar("Function", bound=Callable[..., Any])


def operator(function: Function) -> Function:
    """Where a tape really computes (`stepsight.run.transformers`), torch's function of that name runs."""

    @wraps(function)
    def called(tape: Tape, *args: Any, **options: Any) -> Any:
        if tape.functions is None:
            return function(tape, *args, **options)
        return tape.functions[function.__name__](*args, **options)

    return cast(Function, called)


@dataclass(slots=True, eq=False)
class Node:
    """One step of the backward pass: the gradients of a function's outputs in, of its inputs out."""

    name: str
    sequence: float
    edges: tuple[tuple[Node, int] | None, ...]
    rule: Rule
    outputs: tuple[Tensor, ...]
    leaf: Tensor | None = None
    saved: tuple[Tensor, ...] = ()


@dataclass(slots=True)
class _OpenOp:
    name: str
    label: str
    shapes: tuple[Shape, ...]
    kernels: list[Kernel] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    collective: Collective | None = None
    blocks_host: bool = False
    resumed: bool = False

    def says_nothing(self) -> bool:
        return self.resumed and not (self.kernels or self.calls or self.waits or self.collective)


def node_of(name: str) -> str:
    """How autograd names the node of a function: ``aten::_log_softmax``, LogSoftmaxBackward0."""
    return "".join(part.capitalize() for part in name.rpartition(":")[2].split("_")) + "Backward0"


class Tape:
    """Records one rank's training step. ``device`` is cuda or cpu: some kernels differ."""

    functions: Mapping[str, Callable[..., Any]] | None = None
    """What runs in place of operators that are only recorded here, by their names."""

    def __init__(
        self, device: str = "cuda", gemm_dtype: str | None = None, autocast: str | None = None
    ) -> None:
        self.device = device
        self.gemm_dtype = gemm_dtype
        self.autocast = autocast
        self.phase = "forward"
        self.label = ""
        self.ops: list[Op] = []
        self.parameters: list[Tensor] = []
        self.marks: dict[str, int] = {}
        self.on_grad_ready: Callable[[Tensor], None] | None = None
        self.grad_enabled = True
        self.grads_kept = False
        self.parameter_dtype = "fp32"
        self._sequence = count()
        self._open: _OpenOp | None = None
        self._casts: dict[Tensor, Tensor] = {}
        self._just_saved: list[Tensor] = []
        self.lifetimes = Lifetimes.begin()

    # Host operators

    @contextmanager
    def op(self, name: str, inputs: Sequence[Tensor] = ()) -> Iterator[None]:
        """A host operator; operators called inside it are part of it, as in a profile's top level."""
        if self._open is not None:
            yield
            return
        self.lifetimes.opened()
        self._open = _OpenOp(name, self.label, tuple(t.shape for t in inputs))
        try:
            yield
            if not self._open.says_nothing():
                self.ops.append(self._close(self._open))
        finally:
            self._open = None

    def _close(self, op: _OpenOp) -> Op:
        return Op(
            op.name, tuple(op.kernels), op.collective, tuple(op.waits), op.blocks_host, self.phase, op.label,
            op.shapes, None, tuple(op.calls),
        )  # fmt: skip

    def call(self, name: str, inputs: Sequence[Tensor], *kernels: Kernel) -> None:
        """A library call inside the open operator, with the kernels it launches."""
        op = self._current()
        op.calls.append(Call(name, tuple(t.shape for t in inputs)))
        op.kernels.extend(kernels)
        self.lifetimes.called(inputs)

    def function(
        self, name: str, inputs: Sequence[Tensor], out: Tensor, rule: Rule, *kernels: Kernel,
        of: Sequence[Tensor] | None = None, saves: Sequence[Tensor] = (), node: str = "",
    ) -> Tensor:  # fmt: skip
        """A library call that makes ``out``: an operator by itself, or part of the open one. ``rule`` gives
        the gradients of its inputs, or ``of`` some of them, from what it ``saves``."""
        part = self._open is not None
        with self.op(name, inputs):
            self.call(name, inputs, *kernels)
            self.save(*saves)
            self.record(node or node_of(name), inputs if of is None else of, (out,), rule)
        return out if part else self.made(out)

    def made(self, tensor: Tensor) -> Tensor:
        """``tensor`` is what the last call made, though it was written down before it."""
        self.lifetimes.made(tensor)
        return tensor

    def launch(self, *kernels: Kernel) -> None:
        """Kernels of the open operator that no library call stands for."""
        self._current().kernels.extend(kernels)

    def adopt(self, op: Op) -> None:
        """The open operator does what ``op`` does."""
        self._current().kernels.extend(op.kernels)
        self._current().calls.extend(op.calls)

    def communicate(self, collective: Collective, *waits: Wait) -> int:
        """The open operator is a collective; the index by which later operators wait for it."""
        op = self._current()
        op.collective = collective
        op.waits.extend(waits)
        return len(self.ops)

    def wait(self, *waits: Wait) -> None:
        self._current().waits.extend(waits)

    def block_host(self) -> None:
        """The open operator returns only when its kernels are done."""
        self._current().blocks_host = True

    def _current(self) -> _OpenOp:
        if self._open is None:
            raise RuntimeError("a kernel was emitted outside a host operator")
        return self._open

    @contextmanager
    def scope(self, label: str) -> Iterator[None]:
        """The module the following operators belong to."""
        before, self.label = self.label, label
        yield
        self.label = before

    @contextmanager
    def suspended_op(self) -> Iterator[None]:
        """Closes the open operator, lets others follow it, and goes on in a new one of the same name.

        Only for what a hook does inside an operator (a bucket's all_reduce).
        """
        op = self._current()
        self.ops.append(self._close(op))
        self._open = None
        yield
        self._open = _OpenOp(op.name, op.label, (), resumed=True)

    # Autograd

    def parameter(self, name: str, *shape: int) -> Tensor:
        """A trainable tensor, registered in order."""
        tensor = self.leaf(name, *shape)
        tensor.parameter = True
        self.parameters.append(tensor)
        return tensor

    def leaf(self, name: str, *shape: int) -> Tensor:
        """A tensor that asks for a gradient without being one of the model's parameters."""
        tensor = Tensor.new(shape, self.parameter_dtype, persistent=True, name=name)
        tensor.node = Node(ACCUMULATE, float("inf"), (), lambda grad: (), (tensor,), tensor)
        return tensor

    def buffer(self, name: str, shape: Shape, dtype: str = "") -> Tensor:
        """An input or a constant that lives on the device; one of no stated type has the parameters'."""
        return Tensor.new(shape, dtype or self.parameter_dtype, persistent=True, name=name)

    def save(self, *tensors: Tensor) -> None:
        """These are kept until the backward pass reads them."""
        self._just_saved += tensors

    def record(
        self, name: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], rule: Rule
    ) -> None:
        """``outputs`` came from ``inputs`` by a function whose gradient is ``rule``."""
        saved, self._just_saved = tuple(self._just_saved), []
        if not self.grad_enabled or not any(t is not None and t.requires_grad for t in inputs):
            return
        edges = tuple(None if t is None or t.node is None else (t.node, t.output) for t in inputs)
        node = Node(name, next(self._sequence), edges, rule, tuple(outputs), saved=saved)
        for i, tensor in enumerate(outputs):
            tensor.node, tensor.output = node, i

    def known_cast(self, tensor: Tensor) -> Tensor | None:
        """What autocast has cached for this parameter."""
        return self._casts.get(tensor)

    def remember_cast(self, tensor: Tensor, cast: Tensor) -> None:
        self._casts[tensor] = cast

    def forget_casts(self) -> None:
        """Leaving the autocast region clears its cache of cast parameters."""
        self._casts.clear()

    def backward(self, root: Tensor, grad: Tensor) -> None:
        """Runs the gradient rules of everything ``root`` depends on, in the engine's order."""
        if root.node is None:
            return
        waiting = _dependencies(root.node)
        buffers: dict[Node, list[Tensor | None]] = {root.node: [None] * len(root.node.outputs)}
        buffers[root.node][root.output] = grad
        order = count()
        ready: list[tuple[float, int, Node]] = [(-root.node.sequence, next(order), root.node)]
        before, self.grad_enabled = self.grad_enabled, False
        while ready:
            _, _, node = heapq.heappop(ready)
            grads = buffers.pop(node, [None] * len(node.outputs))
            with self.op(EVALUATE + node.name):
                if node.leaf is not None:
                    if grads[0] is not None and node.leaf.parameter:
                        self._accumulated(node.leaf, grads[0])
                    continue
                results = self._gradients(node, grads)
                self.lifetimes.used(node.saved)
                for edge, result in zip(node.edges, results, strict=True):
                    if edge is None:
                        continue
                    target, slot = edge
                    buffer = buffers.setdefault(target, [None] * len(target.outputs))
                    if result is not None:
                        buffer[slot] = self._add(buffer[slot], result)
                    waiting[target] -= 1
                    if waiting[target] == 0:
                        heapq.heappush(ready, (-target.sequence, next(order), target))
        self.grad_enabled = before

    def _gradients(self, node: Node, grads: Grads) -> Grads:
        """What the node's rule gives, fitted to the tensors they are gradients of."""
        if all(grad is None for grad in grads):
            return [None] * len(node.edges)
        return [
            result if result is None or edge is None else self._fitted(result, edge[0].outputs[edge[1]])
            for edge, result in zip(node.edges, node.rule(*grads), strict=True)
        ]

    def _fitted(self, grad: Tensor, tensor: Tensor) -> Tensor:
        """Autograd sums a gradient to its tensor's sizes, then brings it to its dtype."""
        grad = self.sum_to(grad, tensor.shape)
        if grad.dtype == tensor.dtype:
            return grad
        out = grad.empty_like(tensor.dtype)
        kernel = pointwise_kernel("cast", (grad,), out)
        self.call("aten::_to_copy", (grad,), kernel)
        return out

    def sum_to(self, grad: Tensor, shape: Shape) -> Tensor:
        """A gradient summed over the dimensions its tensor was broadcast along."""
        if grad.shape == shape:
            return grad
        rows = max(prod(shape), 1)
        kernel = reduce_kernel(grad, rows)
        self.call("aten::sum", (grad,), kernel)
        return Tensor.new(shape, grad.dtype)

    def _add(self, held: Tensor | None, grad: Tensor) -> Tensor:
        if held is None:
            return grad
        kernel = pointwise_kernel("add", (held, grad), held)
        self.call("aten::add", (held, grad), kernel)
        return held.empty_like()

    def _accumulated(self, parameter: Tensor, grad: Tensor) -> None:
        """A gradient is kept as it comes if it lies in memory as its parameter does, else copied."""
        if self.grads_kept:
            self._add(parameter, grad)
        elif not same_layout(parameter, grad):
            kernel = Kernel.of("transpose", parameter.dtype, operator="copy", elements=parameter.elements)
            self.call("aten::copy_", (parameter, grad), kernel)
            grad = parameter.empty_like()
        if not self.grads_kept:
            self.lifetimes.keep(grad)
        if self.on_grad_ready is not None:
            self.on_grad_ready(parameter)

    def checkpoint(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """``function(x)`` keeping only ``x``: the backward pass runs it again before its gradient."""
        self.grad_enabled = False
        made = function(x)
        self.save(x)
        self.grad_enabled = True
        out = made.alias(made.shape, made.strides)

        def rule(grad: Tensor) -> Grads:
            given_again = self.leaf("checkpoint", *x.shape)
            given_again.dtype = x.dtype
            with self.suspended_op():
                self.grad_enabled = True
                again = function(given_again)
                self.grad_enabled = False
                self.backward(again, grad)
            return (Tensor.new(x.shape, x.dtype),)

        self.record("CheckpointFunctionBackward", (x,), (out,), rule)
        return out

    def program(self, name: str = "") -> RankProgram:
        return RankProgram(tuple(self.ops), name)


def _dependencies(root: Node) -> Counter[Node]:
    """How many gradients each node waits for."""
    waiting: Counter[Node] = Counter()
    stack = [root]
    while stack:
        for target in (edge[0] for edge in stack.pop().edges if edge is not None):
            waiting[target] += 1
            if waiting[target] == 1 and target is not root:
                stack.append(target)
    return waiting
