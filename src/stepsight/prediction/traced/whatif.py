"""What if: changes to a traced step, each a new job or a new platform.

Every function takes what a prediction is made of and returns the same kind of thing, so
that two predictions can be compared and their difference has a timeline.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from stepsight.errors import StepsightError
from stepsight.hardware.gpus import find_gpu
from stepsight.patterns import compiled
from stepsight.platform.load import Platform, load_platform
from stepsight.program.job import Collective, HostTimes, Job, Kernel, Op, RankProgram, Wait, world
from stepsight.program.variants import classify

_NO_HOST = HostTimes(0.0, 0.0, 0.0, 0.0, 0.0)
_BATCH_DIMS = {
    "gemm": ("m",), "elementwise": ("elements", "read_bytes", "write_bytes"), "softmax": ("rows",),
    "softmax_backward": ("rows",), "layer_norm": ("rows",), "layer_norm_backward": ("rows",),
    "layer_norm_weights": ("rows",),
    "batch_norm": ("rows",), "batch_norm_backward": ("rows",), "dropout": ("elements",),
    "transpose": ("elements",), "concat": ("read_bytes", "write_bytes"), "gather": ("rows",),
    "scatter": ("rows",), "attention": ("batch",), "attention_backward": ("batch",), "conv": ("batch",),
    "conv_dgrad": ("batch",), "conv_wgrad": ("batch",), "copy_h2d": ("bytes",), "copy_d2d": ("bytes",),
    "pool": ("elements", "read_bytes", "write_bytes"), "nll_loss": ("rows",), "nll_loss_backward": ("rows",),
    "reduce": ("cols",), "sort": ("elements",),
}  # fmt: skip
"""The sizes that grow with the batch, by family. Weights, optimizers and fills do not."""


def with_link(platform: Platform, gbps: float) -> Platform:
    """Another link bandwidth between the GPUs of a node, in GB/s per direction."""
    if gbps <= 0:
        raise StepsightError(f"a link needs a bandwidth above zero, not {gbps}")
    return replace(platform, spec=replace(platform.spec, link=replace(platform.spec.link, gbps=gbps)))


def on_gpu(platform: Platform, gpu: str) -> Platform:
    """The same number of another GPU, with the links it usually has."""
    spec = platform.spec
    shape = f"{spec.nodes}x{spec.gpus_per_node}x" if spec.nodes > 1 else f"{spec.gpus_per_node}x"
    return load_platform(f"{shape}{gpu}")


def with_nodes(platform: Platform, nodes: int) -> Platform:
    """More nodes of the same kind, with the network that GPUs of this kind usually have if it names none."""
    spec = platform.spec
    entry = find_gpu(spec.gpu.name)
    nic = spec.nic or (entry.nic if entry else None)
    if nic is None:
        raise StepsightError(
            f"{spec.name} has {spec.ranks} GPUs, and what joins nodes of {spec.gpu.name} is not known; "
            "name a larger platform with --platform"
        )
    name = f"{nodes}x{spec.gpus_per_node}x{spec.gpu.name}"
    return replace(platform, spec=replace(spec, name=name, nodes=nodes, nic=nic))


def without_host(job: Job) -> Job:
    """No host overhead, as if the step were one CUDA graph: waits for the device stay."""
    return _each_op(job, lambda op: replace(op, overhead_us=_NO_HOST))


def with_ranks(job: Job, ranks: int) -> Job:
    """The same step on another number of data-parallel ranks; every rank's batch stays as it was.

    Only jobs whose collectives are all over the whole world can be widened so. Gradients and weights are as
    large on any number of ranks, however they are reduced and gathered. What every rank adds to grows with
    them: results of a forward that are reduced and scattered (row-wise tables), and their gradients.
    """
    if ranks < 1:
        raise StepsightError("a job needs at least one rank")
    groups = {c.group for p in job.programs for op in p.ops if (c := op.collective)}
    if groups - {"world"}:
        raise StepsightError(
            f"the trace also uses the process groups {sorted(groups - {'world'})}; "
            "how they would grow is not known"
        )
    if ranks == job.ranks:
        return job
    programs = tuple(job.program_of_rank[r % job.ranks] for r in range(ranks))
    starts = tuple(job.start_us[r % job.ranks] for r in range(ranks)) if job.start_us else ()
    widened = replace(job, program_of_rank=programs, groups=world(ranks), start_us=starts)
    scattered = any(_scatters_results(op) for p in job.programs for op in p.ops)

    def grown(op: Op) -> Op:
        c = op.collective
        if c is None:
            return op
        their_gradients = scattered and c.kind == "all_gather" and op.phase == "backward"
        grown_by = ranks / job.ranks if _scatters_results(op) or their_gradients else 1.0
        return replace(op, collective=replace(c, bytes=c.bytes * grown_by, measured_us=None))

    return _each_op(widened, grown)


def _scatters_results(op: Op) -> bool:
    return op.collective is not None and op.collective.kind == "reduce_scatter" and op.phase == "forward"


def without_ops(job: Job, pattern: str) -> Job:
    """The ops whose name matches are gone: no host time, no kernels, no collective."""
    wanted = _compiled(pattern)

    def emptied(op: Op) -> Op:
        if not wanted.search(op.name):
            return op
        return replace(op, kernels=(), collective=None, waits=(), blocks_host=False, overhead_us=_NO_HOST)

    left = _each_op(job, emptied)
    if not any(
        op.kernels or op.collective or op.overhead_us != _NO_HOST for p in left.programs for op in p.ops
    ):
        raise StepsightError(f"drop={pattern} leaves nothing of the step; name fewer operators")
    return left


def fused(job: Job, pattern: str) -> Job:
    """Runs of neighbouring ops that match become one op with one kernel.

    The fused kernel reads what the first read and writes what the last wrote; the traffic
    between them is saved, and so are the other ops' host times.
    """
    wanted = _compiled(pattern)
    return replace(job, programs=tuple(replace(p, ops=_fused_ops(p, wanted)) for p in job.programs))


def _fused_ops(program: RankProgram, wanted: re.Pattern[str]) -> tuple[Op, ...]:
    """Ops keep their places (waits name them by index): what is fused away stays as an empty op."""
    ops = list(program.ops)
    start = 0
    while start < len(ops):
        end = start
        while end < len(ops) and wanted.search(ops[end].name) and _fusible(ops[end]):
            end += 1
        kernels = [k for op in ops[start:end] for k in op.kernels]
        if len(kernels) > 1:
            ops[start] = replace(ops[start], kernels=(_one_pass(kernels),))
            for i in range(start + 1, end):
                ops[i] = replace(ops[i], kernels=(), overhead_us=_NO_HOST)
        start = max(end, start + 1)
    return tuple(ops)


def _fusible(op: Op) -> bool:
    streams = {k.stream for k in op.kernels}
    return op.collective is None and not op.waits and not op.blocks_host and len(streams) <= 1


def _one_pass(kernels: list[Kernel]) -> Kernel:
    elements = max(k.dim("elements", 1.0) for k in kernels)
    read, write = kernels[0].dim("read_bytes", 0.0), kernels[-1].dim("write_bytes", 0.0)
    flops = sum(k.dim("elements", 0.0) for k in kernels)
    dims = (("elements", max(elements, flops / 8)), ("read_bytes", read), ("write_bytes", write))
    kind = classify("elementwise", "fused")
    return Kernel("elementwise", dims, kernels[0].dtype, kernels[0].stream, "fused", kind=kind)


def with_bucket(job: Job, bucket_mb: float) -> Job:
    """Gradient all_reduces gathered into buckets of another size (smaller ones are not split)."""
    if bucket_mb <= 0:
        raise StepsightError(f"a bucket needs a size above zero, not {bucket_mb}")
    limit = bucket_mb * 2**20
    return replace(job, programs=tuple(replace(p, ops=_bucketed(p, limit)) for p in job.programs))


def _bucketed(program: RankProgram, limit: float) -> tuple[Op, ...]:
    """An all_reduce of the backward waits for the next one while both fit into one bucket."""
    ops = list(program.ops)
    held: list[int] = []
    size = 0.0
    reducing = [
        i for i, op in enumerate(ops)
        if op.phase == "backward" and op.collective and op.collective.kind == "all_reduce"
    ]  # fmt: skip
    moved: dict[int, int] = {}
    for i in reducing:
        here = ops[i].collective
        if here is None:
            continue
        if held and size + here.bytes > limit:
            held, size = [], 0.0
        for earlier in held:
            ops[earlier] = replace(ops[earlier], collective=None, overhead_us=_NO_HOST)
            moved[earlier] = i
        size += here.bytes
        held = [*held, i]
        ops[i] = replace(ops[i], collective=_sized(here, size))
    return tuple(replace(op, waits=tuple(_moved(w, moved, n) for w in op.waits)) for n, op in enumerate(ops))


def _sized(collective: Collective, size: float) -> Collective:
    return replace(collective, bytes=size, measured_us=None)


def _moved(wait: Wait, moved: dict[int, int], at: int) -> Wait:
    target = wait.on
    while isinstance(target, int) and target in moved and moved[target] < at:
        target = moved[target]
    return replace(wait, on=target)


def with_batch(job: Job, factor: float) -> Job:
    """The batch times ``factor``: sizes that follow the batch grow, collectives of gradients do not."""
    if factor <= 0:
        raise StepsightError(f"a batch factor must be above zero, not {factor}")

    def grown(op: Op) -> Op:
        kernels = tuple(_scaled(k, factor) for k in op.kernels)
        c = op.collective
        if c is not None and c.kind in ("all_to_all", "all_to_allv"):
            c = replace(c, bytes=c.bytes * factor, measured_us=None)
        return replace(op, kernels=kernels, collective=c)

    return _each_op(job, grown)


def _scaled(kernel: Kernel, factor: float) -> Kernel:
    if kernel.lookup is not None:
        tables = tuple(replace(t, batch=max(round(t.batch * factor), 1)) for t in kernel.lookup.tables)
        return replace(kernel, lookup=replace(kernel.lookup, tables=tables), measured_us=None)
    growing = _BATCH_DIMS.get(kernel.family, ())
    if not growing:
        return kernel
    # The gradient of a weight sums over the batch: there the reduced size grows.
    if kernel.family == "gemm" and kernel.dim("k") > max(kernel.dim("m"), kernel.dim("n")):
        growing = ("k",)
    dims = tuple((n, v * factor if n in growing else v) for n, v in kernel.dims)
    return replace(kernel, dims=dims, measured_us=None)


def _each_op(job: Job, change: Callable[[Op], Op]) -> Job:
    return replace(
        job, programs=tuple(replace(p, ops=tuple(change(op) for op in p.ops)) for p in job.programs)
    )


def _compiled(pattern: str) -> re.Pattern[str]:
    return compiled(pattern, "the pattern of a what-if")
