"""What if: changes to a traced step, each a new job or a new platform.

Every function takes what a prediction is made of and returns the same kind of thing, so
that two predictions can be compared and their difference has a timeline.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from typing import Any, TypeVar

from stepsight.errors import InputError, StepsightError
from stepsight.hardware.gpus import find_gpu
from stepsight.inputs import compiled, limit, number, whole
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.compare import Comparison, compare
from stepsight.prediction.predict import CapturedOn
from stepsight.prediction.traced.anchoring import with_waits_kept
from stepsight.prediction.traced.predict import Basis, TracedStep
from stepsight.program.job import HostTimes, Kernel, Op, Wait, world
from stepsight.program.observation import ObservedJob, OpObservations, of_collective, with_collective
from stepsight.records import nearest
from stepsight.trace.job import without_late_peers

ObservedOp = tuple[Op, OpObservations]
NO_HOST = HostTimes(0.0, 0.0, 0.0, 0.0, 0.0)
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


def without_host(job: ObservedJob) -> ObservedJob:
    """No host overhead, as if the step were one CUDA graph: waits for the device stay."""
    return job.each(lambda op, seen: (replace(op, overhead_us=NO_HOST), seen))


def with_ranks(observed: ObservedJob, ranks: int) -> ObservedJob:
    """The same step on another number of data-parallel ranks; every rank's batch stays as it was.

    Only jobs whose collectives are all over the whole world can be widened so. Gradients and weights are as
    large on any number of ranks, however they are reduced and gathered. What every rank adds to grows with
    them: results of a forward that are reduced and scattered (row-wise tables), and their gradients.
    """
    if ranks < 1:
        raise StepsightError("a job needs at least one rank")
    job = observed.job
    groups = {c.group for p in job.programs for op in p.ops if (c := op.collective)}
    if groups - {"world"}:
        raise StepsightError(
            f"the trace also uses the process groups {sorted(groups - {'world'})}; "
            "how they would grow is not known"
        )
    if ranks == job.ranks:
        return observed
    programs = tuple(job.program_of_rank[r % job.ranks] for r in range(ranks))
    starts = tuple(job.start_us[r % job.ranks] for r in range(ranks)) if job.start_us else ()
    widened = replace(job, program_of_rank=programs, groups=world(ranks), start_us=starts)
    scattered = any(_scatters_results(op) for p in job.programs for op in p.ops)

    def grown(op: Op, seen: OpObservations) -> tuple[Op, OpObservations]:
        c = op.collective
        if c is None:
            return op, seen
        their_gradients = scattered and c.kind == "all_gather" and op.phase == "backward"
        grown_by = ranks / job.ranks if _scatters_results(op) or their_gradients else 1.0
        return replace(op, collective=replace(c, bytes=c.bytes * grown_by)), unmeasured_collective(op, seen)

    return replace(observed, job=widened).each(grown)


def _scatters_results(op: Op) -> bool:
    return op.collective is not None and op.collective.kind == "reduce_scatter" and op.phase == "forward"


def without_ops(job: ObservedJob, pattern: str) -> ObservedJob:
    """The ops whose name matches are gone: no host time, no kernels, no collective."""
    wanted = compiled(pattern, "the pattern of a what-if")

    def emptied(op: Op, seen: OpObservations) -> tuple[Op, OpObservations]:
        if not wanted.search(op.name):
            return op, seen
        return replace(op, kernels=(), collective=None, waits=(), blocks_host=False, overhead_us=NO_HOST), ()

    left = job.each(emptied)
    if not any(op.kernels or op.collective or op.overhead_us != NO_HOST for op, _ in left.ops()):
        raise StepsightError(f"drop={pattern} leaves nothing of the step; name fewer operators")
    return left


def fused(job: ObservedJob, pattern: str) -> ObservedJob:
    """Runs of neighbouring ops that match become one op with one kernel.

    The traffic between them is saved, and so are the other ops' host times.
    """
    wanted = compiled(pattern, "the pattern of a what-if")
    return _each_program(job, lambda ops: _fused_ops(ops, wanted))


def _fused_ops(ops: list[ObservedOp], wanted: re.Pattern[str]) -> None:
    """Ops keep their places (waits name them by index): what is fused away stays as an empty op."""
    start = 0
    while start < len(ops):
        end = start
        while end < len(ops) and wanted.search(ops[end][0].name) and _fusible(ops[end][0]):
            end += 1
        kernels = [k for op, _ in ops[start:end] for k in op.kernels]
        if len(kernels) > 1:
            ops[start] = replace(ops[start][0], kernels=(reduce(one_pass, kernels),)), ()
            for i in range(start + 1, end):
                ops[i] = replace(ops[i][0], kernels=(), overhead_us=NO_HOST), ()
        start = max(end, start + 1)


def _fusible(op: Op) -> bool:
    streams = {k.stream for k in op.kernels}
    return op.collective is None and not op.waits and not op.blocks_host and len(streams) <= 1


def one_pass(first: Kernel, second: Kernel) -> Kernel:
    """One kernel that reads what the first reads and what else the second reads, and writes what the second
    writes."""
    between = first.dim("write_bytes", 0.0)
    read = first.dim("read_bytes", 0.0) + max(second.dim("read_bytes", 0.0) - between, 0.0)
    return Kernel.of(
        "elementwise", second.dtype, operator="fused", stream=second.stream,
        elements=first.dim("elements", 1.0), read_bytes=read, write_bytes=second.dim("write_bytes", 0.0),
    )  # fmt: skip


def with_bucket(job: ObservedJob, bucket_mb: float) -> ObservedJob:
    """Gradient all_reduces gathered into buckets of another size (smaller ones are not split)."""
    if bucket_mb <= 0:
        raise StepsightError(f"a bucket needs a size above zero, not {bucket_mb}")
    return _each_program(job, lambda ops: _bucketed(ops, bucket_mb * 2**20))


def _bucketed(ops: list[ObservedOp], limit: float) -> None:
    """An all_reduce of the backward waits for the next one while both fit into one bucket."""
    held: list[int] = []
    size = 0.0
    moved: dict[int, int] = {}
    for i, (op, seen) in enumerate(ops):
        here = op.collective
        if op.phase != "backward" or here is None or here.kind != "all_reduce":
            continue
        if held and size + here.bytes > limit:
            held, size = [], 0.0
        for earlier in held:
            before, found = ops[earlier]
            ops[earlier] = (
                replace(before, collective=None, overhead_us=NO_HOST),
                found[: len(before.kernels)],
            )
            moved[earlier] = i
        size += here.bytes
        held = [*held, i]
        ops[i] = replace(op, collective=replace(here, bytes=size)), unmeasured_collective(op, seen)
    for i, (op, seen) in enumerate(ops):
        ops[i] = replace(op, waits=tuple(_moved(w, moved, i) for w in op.waits)), seen


def _moved(wait: Wait, moved: dict[int, int], at: int) -> Wait:
    target = wait.on
    while isinstance(target, int) and target in moved and moved[target] < at:
        target = moved[target]
    return replace(wait, on=target)


def with_batch(job: ObservedJob, factor: float) -> ObservedJob:
    """The batch times ``factor``: sizes that follow the batch grow, collectives of gradients do not."""
    if factor <= 0:
        raise StepsightError(f"a batch factor must be above zero, not {factor}")

    def grown(op: Op, seen: OpObservations) -> tuple[Op, OpObservations]:
        kernels = tuple(_scaled(k, factor) for k in op.kernels)
        found = [
            o if new is old else replace(o, measured_us=None)
            for old, new, o in zip(op.kernels, kernels, seen, strict=False)
        ]
        c = op.collective
        if c is not None:
            exchange = c.kind in ("all_to_all", "all_to_allv")
            found.append(unmeasured_collective(op, seen)[-1] if exchange else seen[-1])
            c = replace(c, bytes=c.bytes * factor) if exchange else c
        return replace(op, kernels=kernels, collective=c), tuple(found)

    return job.each(grown)


def _scaled(kernel: Kernel, factor: float) -> Kernel:
    if kernel.lookup is not None:
        tables = tuple(replace(t, batch=max(round(t.batch * factor), 1)) for t in kernel.lookup.tables)
        return replace(kernel, lookup=replace(kernel.lookup, tables=tables))
    growing = _BATCH_DIMS.get(kernel.family, ())
    if not growing:
        return kernel
    # The gradient of a weight sums over the batch: there the reduced size grows.
    if kernel.family == "gemm" and kernel.dim("k") > max(kernel.dim("m"), kernel.dim("n")):
        growing = ("k",)
    return replace(kernel, dims=tuple((n, v * factor if n in growing else v) for n, v in kernel.dims))


def unmeasured_collective(op: Op, seen: OpObservations) -> OpObservations:
    """The observations of an operator whose collective changes: its measured time no longer counts."""
    return with_collective(seen, replace(of_collective(op, seen), measured_us=None))


def _each_program(job: ObservedJob, change: Callable[[list[ObservedOp]], None]) -> ObservedJob:
    """The job with the operators of every program changed in place."""
    programs, seen = [], []
    for at, program in enumerate(job.job.programs):
        ops = list(job.of_program(at))
        change(ops)
        programs.append(replace(program, ops=tuple(op for op, _ in ops)))
        seen.append(tuple(found for _, found in ops))
    return ObservedJob(replace(job.job, programs=tuple(programs)), tuple(seen))


Answer = Callable[[Any, str], Any]
Asked = TypeVar("Asked", TracedStep, CapturedOn)


def _number(text: str, question: str) -> float:
    return number(text, f"--what-if {question}={text}", fix=QUESTIONS[question][0])


def _of_job(change: Callable[[ObservedJob, str], ObservedJob]) -> Answer:
    """A change of what the step does, wherever it runs."""
    return lambda step, value: replace(step, job=change(step.job, value))


def _with_ranks(step: TracedStep | CapturedOn, ranks: int) -> TracedStep | CapturedOn:
    """The step on that many ranks; of a traced one, on as many more nodes of its kind as they need."""
    if isinstance(step, CapturedOn) or ranks == step.job.job.ranks:
        return replace(step, job=with_ranks(step.job, ranks))
    job = with_waits_kept(step.job, step.own) if step.basis is Basis.ANCHORED else step.job
    platform, notes = step.platform, step.notes
    if ranks > platform.spec.ranks:
        platform = with_nodes(platform, -(-ranks // platform.spec.gpus_per_node))
        notes = (*notes, f"{ranks} ranks: {platform.spec.nodes} nodes of {platform.spec.gpus_per_node} GPUs")
    return replace(step, job=with_ranks(job, ranks), platform=platform, notes=notes)


QUESTIONS: dict[str, tuple[str, Answer]] = {
    "link": ("link=GBPS: another link bandwidth between the GPUs of a node, GB/s per direction",
             lambda step, v: step.on(with_link(step.platform, _number(v, "link")))),
    "gpu": ("gpu=NAME: another GPU, with the links it usually has",
            lambda step, v: step.on(on_gpu(step.platform, v))),
    "ranks": ("ranks=N: N data-parallel ranks, with the batch per rank unchanged",
              lambda step, v: _with_ranks(step, whole(v, f"--what-if ranks={v}", most=limit("RANKS")))),
    "no-host": ("no-host: no host overhead, as with CUDA graphs", _of_job(lambda job, _: without_host(job))),
    "peers-on-time": ("peers-on-time: no rank waits for ranks that have no trace",
                      _of_job(lambda job, _: without_late_peers(job))),
    "drop": ("drop=PATTERN: remove the operators whose name matches", _of_job(without_ops)),
    "fuse": ("fuse=PATTERN: fuse consecutive matching operators into one kernel", _of_job(fused)),
    "bucket": ("bucket=MB: gradient all_reduces in buckets of this size",
               _of_job(lambda job, v: with_bucket(job, _number(v, "bucket")))),
    "batch": ("batch=FACTOR: multiply the batch by this",
              _of_job(lambda job, v: with_batch(job, _number(v, "batch")))),
}  # fmt: skip
"""Question → how it is written and what it says, and the change it makes."""
_WITHOUT_VALUE = ("no-host", "peers-on-time")


def work_ratio(before: Asked, after: Asked, questions: Iterable[str]) -> float:
    """What a step of the changed one does over what it did, in samples: batch= and ranks= change it."""
    factors = [_number(text.partition("=")[2], "batch") for text in questions if text.startswith("batch=")]
    return math.prod(factors) * after.job.job.ranks / before.job.job.ranks


def changed(step: Asked, questions: Iterable[str]) -> Asked:
    """The step with every what-if applied, in the order given."""
    for text in questions:
        name, equals, value = text.partition("=")
        if name not in QUESTIONS:
            raise InputError(f"--what-if {text}", "no such question", nearest(name, QUESTIONS))
        if not equals and name not in _WITHOUT_VALUE:
            raise InputError(f"--what-if {text}", "needs a value", QUESTIONS[name][0])
        if name == "peers-on-time" and isinstance(step, CapturedOn):
            raise InputError(f"--what-if {text}", "has no effect on a captured step", "leave it out")
        step = replace(QUESTIONS[name][1](step, value), measured_us=None)
    return step


def compared(step: Asked, questions: Iterable[str]) -> Comparison:
    """The step's prediction, and that of the step with every what-if applied."""
    after = changed(step, questions)
    ratio = work_ratio(step, after, questions)
    if isinstance(after, CapturedOn):
        after = after.of_work(ratio, ratio * step.job.job.ranks / after.job.job.ranks)
    return compare(step.predicted(), after.predicted(), work_ratio=ratio)
