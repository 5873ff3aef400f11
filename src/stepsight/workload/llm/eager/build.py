"""A transformer's training step in plain PyTorch: data parallel, or micro-batches and stages in 1F1B order.

Ranks are numbered as Megatron numbers them: tensor fastest, then data, then pipeline. A
stage runs its warm-up forwards, then one forward and one backward in turn, then the
remaining backwards; between the two, activations and gradients cross a boundary together.
Gradients are reduced over the data group at the end, in one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from stepsight.errors import InputError
from stepsight.program.job import (
    COMM,
    COMPUTE,
    HOST,
    Call,
    Collective,
    Group,
    Job,
    Kernel,
    Op,
    Period,
    RankProgram,
    Wait,
)
from stepsight.workload.llm.eager import bert, gpt, llama, xlnet
from stepsight.workload.llm.eager.config import StagePart, TransformerConfig
from stepsight.workload.memory import MemoryReport, RankMemory, kept_memory, peak_memory
from stepsight.workload.operators import optimizers
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.step import start_backward, train_step

LEAST_BLOCKS = 3
"""A period shows in the advances of two blocks in a row, which takes three."""
Model = Callable[[Tape, TransformerConfig, StagePart], Callable[[], Tensor]]


def _unsplit(model: Callable[[Tape, TransformerConfig], Callable[[], Tensor]]) -> Model:
    """A family that is never cut into stages."""
    return lambda tape, c, part: model(tape, c)


MODELS: dict[str, Model] = {
    "bert": _unsplit(bert.model),
    "gpt2": gpt.model,
    "gpt": gpt.model,
    "opt": gpt.model,
    "llama": _unsplit(llama.model),
    "xlnet": _unsplit(xlnet.model),
}


def build(c: TransformerConfig, device: str = "cuda", blocks: int | None = None) -> Job:
    """Every rank's program; ranks that do the same share one.

    Of micro-batches that repeat ``blocks`` are listed at most, all by default.
    """
    if _staged(c):
        if c.training.cuda_graph:
            raise InputError(
                f"{c.name}: cuda_graph", "the host waits between the stages of a pipeline",
                "leave it out, or use one stage and one micro-batch",
            )  # fmt: skip
        return _staged_job(c, device, MODELS[c.family], blocks)
    program = _tape(c, device).program(c.name)
    if c.tensor == 1:
        return Job.replicated(program, c.ranks)
    return Job((program,), (0,) * c.ranks, groups(c))


def memory(c: TransformerConfig) -> MemoryReport:
    """What each rank's device must hold at the peak."""
    if _staged(c):
        return _staged_memory(c, MODELS[c.family])
    return MemoryReport((peak_memory(_tape(c, "cuda"), c.training, c.data),) * c.ranks)


def _staged(c: TransformerConfig) -> bool:
    """Micro-batches or stages."""
    return c.pipeline * c.micro_batches > 1


def _tape(c: TransformerConfig, device: str) -> Tape:
    def model(tape: Tape) -> Callable[[], Tensor]:
        forward = MODELS[c.family](tape, c, c.whole)

        def run() -> Tensor:
            _copy_inputs(tape, c)
            return forward()

        return run

    group = "world" if c.tensor == 1 else "data"
    return train_step(c.training, device, c.data, c.bucket_mb, model, group)


def _copy_inputs(tape: Tape, c: TransformerConfig) -> None:
    """Token ids and labels go to the device."""
    if tape.device != "cuda":
        return
    shape = (c.batch_per_rank, c.sequence)
    kernel = Kernel.of("copy_h2d", "int64", bytes=8 * c.batch_per_rank * c.sequence)
    op = Op("aten::to", (kernel,), label="inputs", shapes=(shape,), calls=(Call("aten::_to_copy", (shape,)),))
    tape.ops.extend([op] * (1 if c.training.loss == "none" else 2))


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage does with a micro batch, and what it holds."""

    forward: list[Op]
    first_backward: list[Op]
    backward: list[Op]
    tape: Tape


@dataclass(slots=True)
class _Writer:
    """Appends blocks of ops, keeping the waits inside each block pointing at the right op."""

    ops: list[Op] = field(default_factory=list)

    def block(self, ops: Sequence[Op], after: int | None) -> None:
        base = len(self.ops)
        self.ops.extend(ops)
        for i, op in enumerate(ops):
            if op.waits:
                self.ops[base + i] = replace(op, waits=tuple(_moved(w, base) for w in op.waits))
        if after is not None:
            first = self.ops[base]
            self.ops[base] = replace(first, waits=(*first.waits, Wait(COMPUTE, after)))

    def exchange(self, name: str, boundary: int, bytes_: float, dtype: str) -> int:
        """A message across a stage boundary, or one each way at once.

        The host then waits for the device (Megatron calls ``torch.cuda.synchronize()`` after
        every exchange), so it never runs ahead of a pipeline.
        """
        stream = f"p2p {boundary}"
        collective = Collective("send_recv", bytes_, f"boundary {boundary}", stream, dtype, name=name)
        self.ops.append(Op(f"c10d::{name}", (), collective, (Wait(stream, COMPUTE),), phase="forward"))
        started = len(self.ops) - 1
        self.ops.append(Op("cudaDeviceSynchronize", waits=(Wait(HOST, started), Wait(HOST, COMPUTE))))
        return started


def _moved(wait: Wait, base: int) -> Wait:
    return replace(wait, on=wait.on + base) if isinstance(wait.on, int) else wait


def _staged_job(c: TransformerConfig, device: str, model: Model, blocks: int | None = None) -> Job:
    """All ranks' programs; the ranks of a stage share one.

    Of the micro batches in the steady part ``blocks`` that repeat are listed at most, all by default.
    """
    micro = replace(c, batch_per_rank=c.batch_per_rank // c.micro_batches)
    recorded = {part: _recorded(micro, part, device, model) for part in set(_parts(c))}
    # The first stage has the fewest steady micro batches. Of those, the first one makes the gradients and the
    # last one is followed by nothing; those between repeat.
    shortest = c.micro_batches - min(c.pipeline - 1, c.micro_batches) - 2
    skipped = 0 if blocks is None else max(0, shortest - max(blocks, LEAST_BLOCKS))
    programs = [_program(micro, c, s, recorded[part], skipped) for s, part in enumerate(_parts(c))]
    per_stage = c.data * c.tensor
    order = tuple(rank // per_stage for rank in range(c.ranks))
    return Job(tuple(programs), order, groups(c))


def groups(c: TransformerConfig) -> dict[str, tuple[Group, ...]]:
    """The process groups by the ranks' numbering."""

    def rank(stage: int, data: int, tensor: int) -> int:
        return tensor + c.tensor * (data + c.data * stage)

    stages, replicas, shares = range(c.pipeline), range(c.data), range(c.tensor)
    made: dict[str, Sequence[tuple[int, ...]]] = {
        "world": [tuple(range(c.ranks))],
        "tensor": [tuple(rank(s, d, t) for t in shares) for s in stages for d in replicas],
        "data": [tuple(rank(s, d, t) for d in replicas) for s in stages for t in shares],
    }
    pairs = [(d, t) for d in replicas for t in shares]
    for boundary in range(c.pipeline - 1):
        ends = [(rank(boundary, d, t), rank(boundary + 1, d, t)) for d, t in pairs]
        made[f"boundary {boundary}"] = ends
    if c.pipeline > 1:
        made["embedding"] = [(rank(0, d, t), rank(c.pipeline - 1, d, t)) for d, t in pairs]
    return {
        name: tuple(Group(f"{name} {i}", ranks) for i, ranks in enumerate(sets))
        for name, sets in made.items()
    }


def _parts(c: TransformerConfig) -> list[StagePart]:
    """What each stage holds; all stages between the ends are identical."""
    return [StagePart(c.layers // c.pipeline, s == 0, s == c.pipeline - 1) for s in range(c.pipeline)]


def _recorded(micro: TransformerConfig, part: StagePart, device: str, model: Model) -> Stage:
    """A stage depends on one micro batch only, not on how many there are."""
    return _stage(replace(micro, micro_batches=1, name="", source=""), part, device, model)


@lru_cache(maxsize=64)
def _stage(micro: TransformerConfig, part: StagePart, device: str, model: Model) -> Stage:
    """Records a stage twice: the first micro batch makes the gradients, later ones add to them."""
    recorded = []
    for kept in (False, True):
        tape = micro.training.tape(device)
        tape.grads_kept = kept
        out = model(tape, micro, part)()
        forward = list(tape.ops)
        start_backward(tape, out, given=not part.last)
        backward = [_rebased(op, len(forward)) for op in tape.ops[len(forward) :]]
        recorded.append((forward, backward, tape))
    return Stage(recorded[0][0], recorded[0][1], recorded[1][1], recorded[0][2])


def _rebased(op: Op, base: int) -> Op:
    return replace(op, waits=tuple(_moved(w, -base) for w in op.waits)) if op.waits else op


def _program(
    micro: TransformerConfig, c: TransformerConfig, stage: int, parts: Stage, skipped: int
) -> RankProgram:
    writer = _Writer()
    last = c.pipeline - 1
    dtype = parts.tape.parameter_dtype
    bytes_ = float(Tensor.new((micro.batch_per_rank, micro.sequence, micro.hidden), dtype).bytes)

    def exchange(name: str, boundary: int) -> int | None:
        if not 0 <= boundary < last:
            return None
        return writer.exchange(name, boundary, bytes_, dtype)

    warmup = min(last - stage, c.micro_batches)
    steady = c.micro_batches - warmup - skipped
    for _ in range(warmup):
        writer.block(parts.forward, exchange("recv_", stage - 1))
        exchange("send", stage)
    arrived = exchange("recv_", stage - 1) if steady else None
    starts: list[int] = []
    for i in range(steady):
        if i > 0:
            starts.append(len(writer.ops))
        writer.block(parts.forward, arrived)
        gradient = exchange("send_forward_recv_backward", stage)
        writer.block(parts.backward if i else parts.first_backward, gradient)
        more = i < steady - 1
        arrived = exchange("send_backward_recv_forward" if more else "send", stage - 1)
    for i in range(warmup):
        first = not steady and i == 0
        writer.block(parts.first_backward if first else parts.backward, exchange("recv_", stage))
        exchange("send", stage - 1)
    _finish(writer, c, stage, parts)
    # Neighbours exchange in steady micro batches of the same number: all stages skip the same ones.
    fewest = c.micro_batches - last - skipped
    period = Period(tuple(starts[: fewest - 1]), skipped) if skipped else None
    return RankProgram(tuple(writer.ops), f"stage {stage}", period)


def _finish(writer: _Writer, c: TransformerConfig, stage: int, parts: Stage) -> None:
    """Reduce gradients over replicas, tied embeddings over the ends, then update."""
    tape = Tape(parts.tape.device)
    tape.phase = "backward"
    parameters = parts.tape.parameters
    if c.data > 1:
        _reduce(tape, "data", float(sum(p.bytes for p in parameters)), parameters[0].dtype)
    if c.pipeline > 1 and stage in (0, c.pipeline - 1) and c.head == "lm":
        _reduce(tape, "embedding", float(parameters[0].bytes), parameters[0].dtype)
    tape.phase = "optimizer"
    optimizers.step(tape, c.training.optimizer, parameters, c.training.fused_optimizer)
    writer.block(tape.ops, None)


def _reduce(tape: Tape, group: str, bytes_: float, dtype: str) -> None:
    with tape.op("c10d::allreduce_"):
        collective = Collective("all_reduce", bytes_, group, dtype=dtype, name="gradients")
        started = tape.communicate(collective, Wait(COMM, COMPUTE))
    with tape.op("aten::copy_"):
        tape.wait(Wait(COMPUTE, started))


def _staged_memory(c: TransformerConfig, model: Model) -> MemoryReport:
    """A stage keeps the activations of all micro batches between their forward and backward."""
    micro = replace(c, batch_per_rank=c.batch_per_rank // c.micro_batches)
    ranks: list[RankMemory] = []
    for s, part in enumerate(_parts(c)):
        one = kept_memory(_recorded(micro, part, "cuda", model).tape, c.training, c.data)
        in_flight = min(c.pipeline - s, c.micro_batches)
        ranks.extend([replace(one, activations=in_flight * one.activations)] * (c.data * c.tensor))
    return MemoryReport(tuple(ranks))
