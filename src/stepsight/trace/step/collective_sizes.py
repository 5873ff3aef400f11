"""Sizes of collectives whose trace recorded none, inferred from the kernels around them.

An all_reduce of the backward carries what was copied just before it, else the weight
gradients made since the last one. Any other collective carries what its readers read, else what its maker
wrote.
"""

from __future__ import annotations

from dataclasses import replace

from stepsight.dtypes import dtype_bytes
from stepsight.program.job import COMPUTE, Kernel, Op, Sizing
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.unrecorded import COLLECTIVE
from stepsight.trace.step.program import StepProgram, TracedOp

DEFAULT_BUCKET_BYTES = 25 * 2**20
"""DDP's bucket_cap_mb, where not even a weight gradient shows."""
_INTO_BUCKET = "reducer::mul_out"
"""DDP's operator that scales a gradient into its bucket."""
_LEAST_BYTES = 1024.0
_NEIGHBOURS = 3
"""Kernels before and after a collective that are asked for its size."""


def with_sizes(program: StepProgram) -> StepProgram:
    """The same program, every collective with a size."""
    if all(t.collective is None or t.collective.bytes is not None for t in program.ops):
        return program
    ops = list(program.ops)
    gradients = bucketed = 0.0
    for i, traced in enumerate(ops):
        if _INTO_BUCKET in traced.op.name:
            bucketed += _written(traced.op)
        gradients += sum(_weight_gradient(k) for k in traced.op.kernels if traced.op.phase == "backward")
        if traced.collective is None or traced.op.collective is None or traced.collective.bytes is not None:
            continue
        if traced.collective.kind == "all_reduce" and traced.op.phase == "backward":
            copied = _copied_before(ops, i)
            size = copied or max(bucketed, gradients) or _written_before(ops, i) or DEFAULT_BUCKET_BYTES
            gradients = bucketed = 0.0
        else:
            stream, read = _read_after(ops, i)
            # A copy stream's readers (input distribution) show it best; compute kernels on either side.
            size = read if read and stream not in (None, COMPUTE) else max(read, _written_before(ops, i))
        sized = replace(
            traced.op.collective, bytes=max(size, _LEAST_BYTES), size_spread=RULES.value(COLLECTIVE)
        )
        ops[i] = replace(traced, op=replace(traced.op, collective=sized))
    return replace(program, ops=ops)


def _is_unsized(kernel: Kernel) -> bool:
    return kernel.family == "concat" and kernel.sizing is Sizing.UNKNOWN


def _copied_before(ops: list[TracedOp], index: int) -> float:
    """Bytes of the copy into the collective's buffer, where that is the last thing before it."""
    last = next((t.op for t in reversed(ops[:index]) if t.op.kernels), None)
    copies = [k.dim("bytes") for k in last.kernels if k.family == "copy_d2d"] if last else []
    return sum(copies)


def _weight_gradient(kernel: Kernel) -> float:
    """Bytes of a GEMM's result if it sums over the batch, as a weight gradient does."""
    if kernel.family != "gemm" or kernel.dim("batch") > 1:
        return 0.0
    m, n, k = kernel.dim("m"), kernel.dim("n"), kernel.dim("k")
    return m * n * dtype_bytes(kernel.dtype) if k >= max(m, n) else 0.0


def _read_after(ops: list[TracedOp], index: int) -> tuple[str | None, float]:
    """Who waits for the collective, and what its first kernels after the wait read."""
    stream: str | None = None
    sizes: list[float] = []
    for later in ops[index + 1 :]:
        for wait in later.op.waits:
            if wait.on == index:
                stream = wait.waiter
        sizes += [_read(k) for k in later.op.kernels if k.stream == stream]
        if len(sizes) >= _NEIGHBOURS:
            break
    return stream, max(sizes[:_NEIGHBOURS], default=0.0)


def _written_before(ops: list[TracedOp], index: int) -> float:
    """What the last kernels before the collective wrote."""
    sizes: list[float] = []
    for earlier in reversed(ops[:index]):
        if earlier.op.kernels:
            sizes.append(_written(earlier.op))
        if len(sizes) >= _NEIGHBOURS:
            break
    return max(sizes, default=0.0)


def _written(op: Op) -> float:
    return max((k.dim("write_bytes", k.dim("bytes", 0.0)) for k in op.kernels), default=0.0)


def _read(kernel: Kernel) -> float:
    if _is_unsized(kernel):
        return 0.0
    if kernel.family == "gemm":
        return kernel.dim("batch") * kernel.dim("m") * kernel.dim("k") * dtype_bytes(kernel.dtype)
    return kernel.dim("read_bytes", kernel.dim("bytes", 0.0))
