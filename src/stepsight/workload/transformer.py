"""A transformer's training step: the family's model, data parallel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepsight.workload.memory import MemoryReport, dense_memory
from stepsight.workload.program import Call, Job, Kernel, Op
from stepsight.workload.step import train_step
from stepsight.workload.tape import Tape
from stepsight.workload.tensor import Tensor
from stepsight.workload.transformer_config import TransformerConfig
from stepsight.workload.transformers import bert, gpt, gpt2, llama, xlnet

MODELS: dict[str, Callable[[Tape, TransformerConfig], Callable[[], Tensor]]] = {
    "bert": bert.model,
    "gpt2": gpt2.model,
    "gpt": gpt.model,
    "opt": gpt.model,
    "llama": llama.model,
    "xlnet": xlnet.model,
}


@dataclass(frozen=True)
class TransformerWorkload:
    """A transformer that can be turned into rank programs."""

    config: TransformerConfig

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def ranks(self) -> int:
        return self.config.ranks

    def job(self, device: str = "cuda") -> Job:
        """Every rank's program; data-parallel ranks share one."""
        return Job.replicated(self._tape(device).program(self.name), self.ranks)

    def memory(self) -> MemoryReport:
        """What each rank's device must hold at the peak."""
        rank = dense_memory(self._tape("cuda"), self.config.training, self.config.data)
        return MemoryReport((rank,) * self.ranks)

    def _tape(self, device: str) -> Tape:
        c = self.config

        def model(tape: Tape) -> Callable[[], Tensor]:
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
