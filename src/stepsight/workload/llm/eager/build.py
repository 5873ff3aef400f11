"""A transformer's training step: the family's model, data parallel."""

from __future__ import annotations

from collections.abc import Callable

from stepsight.errors import InputError
from stepsight.program.job import Call, Job, Kernel, Op
from stepsight.workload.llm.eager import bert, gpt, llama, pipeline, xlnet
from stepsight.workload.llm.eager.config import TransformerConfig
from stepsight.workload.memory import MemoryReport, dense_memory
from stepsight.workload.operators.lifetimes import followed
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.parallel.step import train_step


def _unsplit(model: Callable[[Tape, TransformerConfig], Callable[[], Tensor]]) -> pipeline.Model:
    """A family that is never cut into stages."""
    return lambda tape, c, part: model(tape, c)


MODELS: dict[str, pipeline.Model] = {
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
        return pipeline.build(c, device, MODELS[c.family], blocks)
    program = _tape(c, device).program(c.name)
    if c.tensor == 1:
        return Job.replicated(program, c.ranks)
    return Job((program,), (0,) * c.ranks, pipeline.groups(c))


def memory(c: TransformerConfig) -> MemoryReport:
    """What each rank's device must hold at the peak."""
    if _staged(c):
        return pipeline.memory(c, MODELS[c.family])
    with followed():
        tape = _tape(c, "cuda")
    return MemoryReport((dense_memory(tape, c.training, c.data),) * c.ranks)


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
