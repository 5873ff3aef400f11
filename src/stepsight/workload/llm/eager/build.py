"""A transformer's training step in plain PyTorch: replicas that reduce their gradients in buckets."""

from __future__ import annotations

from collections.abc import Callable

from stepsight.program.job import Call, Job, Kernel, Op
from stepsight.workload.llm.eager import families, xlnet
from stepsight.workload.llm.eager.config import TransformerConfig
from stepsight.workload.memory import MemoryReport, peak_memory
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor
from stepsight.workload.step import train_step

MODELS: dict[str, Callable[[Tape, TransformerConfig], families.Forward]] = {
    **dict.fromkeys(families.FAMILIES, families.decoder),
    "xlnet": xlnet.model,
}


def build(c: TransformerConfig, device: str = "cuda") -> Job:
    """Every rank runs the same program."""
    return Job.replicated(_tape(c, device).program(c.name), c.data)


def memory(c: TransformerConfig) -> MemoryReport:
    """What each rank's device must hold at the peak."""
    return MemoryReport((peak_memory(_tape(c, "cuda"), c.training, c.data),) * c.data)


def _tape(c: TransformerConfig, device: str) -> Tape:
    def model(tape: Tape) -> families.Forward:
        forward = MODELS[c.family](tape, c)

        def run() -> Tensor:
            _copy_inputs(tape, c)
            return forward()

        return run

    return train_step(c.training, device, c.data, c.bucket_mb, model)


def _copy_inputs(tape: Tape, c: TransformerConfig) -> None:
    """Token ids and labels go to the device."""
    if tape.device != "cuda":
        return
    shape = (c.batch_per_rank, c.sequence)
    kernel = Kernel.of("copy_h2d", "int64", bytes=8 * c.batch_per_rank * c.sequence)
    op = Op("aten::to", (kernel,), label="inputs", shapes=(shape,), calls=(Call("aten::_to_copy", (shape,)),))
    tape.ops.extend([op] * (1 if c.training.loss == "none" else 2))
