"""What every kind of workload has: a description with a number of ranks, and its ``[training]`` table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from stepsight.workload.fields import Fields
from stepsight.workload.operators.optimizers import OPTIMIZERS
from stepsight.workload.operators.tape import Tape


class Description(Protocol):
    """The checked fields of a workload file."""

    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> int: ...


Config = TypeVar("Config", bound=Description)


@dataclass(frozen=True, repr=False)
class Described(Generic[Config]):
    """A workload by its description.

    ``open_ranks`` is the content of a file that leaves the number of ranks to the platform.
    """

    config: Config
    open_ranks: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    sized_by: ClassVar[str] = "parallel.ranks"
    """The fields that say how many ranks there are."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def ranks(self) -> int:
        return self.config.ranks


PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


@dataclass(frozen=True, slots=True)
class Training:
    """The ``[training]`` table.

    ``precision``: fp32; tf32 (fp32 tensors, tensor-core products); fp16, bf16 (autocast:
    fp32 parameters, products in the lower precision). ``zero_grad`` is what happens to
    gradients before a step: none drops them (torch's default), zero fills them. ``read_loss``:
    the loop reads the loss in every step (``loss.item()``), and so waits for the device;
    ``synchronize``: it waits for the device at the end of every step, as one that times them.
    ``master_weights``: parameters, activations and gradients in fp16 or bf16 throughout, with
    fp32 copies in the optimizer, instead of autocast. ``recompute``: each layer keeps only its
    input and is run again in the backward pass. ``cuda_graph``: everything after the copies of the inputs
    is captured and launched at once, so that the host leaves no gaps inside. ``half_state``: with
    ``master_weights``, the optimizer's state is in half precision, too, and there are no fp32 copies.
    """

    precision: str = "fp32"
    optimizer: str = "sgd"
    loss: str = "bce"
    fused_optimizer: bool = False
    zero_grad: str = "none"
    dropout: float = 0.0
    attention: str = "eager"
    recompute: bool = False
    read_loss: bool = False
    synchronize: bool = False
    master_weights: bool = False
    cuda_graph: bool = False
    half_state: bool = False

    @classmethod
    def read(cls, fields: Fields, losses: tuple[str, ...], without_effect: Mapping[str, str]) -> Training:
        """The table's fields; those without effect on this workload are refused with the reason."""
        for key, reason in without_effect.items():
            if fields.has(key) and fields.values[key] not in (False, "eager"):
                raise fields.fail(key, f"has no effect: {reason}", "leave it out")
        choices = {
            "precision": PRECISIONS, "optimizer": OPTIMIZERS, "loss": losses, "zero_grad": ("none", "zero"),
            "attention": ("eager", "flash"),
        }  # fmt: skip
        training = fields.record(cls, {"half_state": False}, choices)
        if training.cuda_graph and training.read_loss:
            raise fields.fail("cuda_graph", "a loss that is read in every step cannot be captured",
                              "leave one of cuda_graph and read_loss out")  # fmt: skip
        fields.finish()
        if training.master_weights and not training.half:
            raise fields.fail(
                "master_weights",
                "has no effect: only half precision has fp32 copies",
                'set precision = "bf16"',
            )
        return training

    @property
    def autocast(self) -> str | None:
        return self.precision if self.half and not self.master_weights else None

    @property
    def half(self) -> bool:
        return self.precision in ("fp16", "bf16")

    @property
    def state_bytes(self) -> int:
        """Of each tensor that the optimizer keeps for a parameter."""
        return 2 if self.half_state else 4

    @property
    def copies_weights(self) -> bool:
        """Whether the optimizer updates fp32 copies of half-precision parameters."""
        return self.half and self.master_weights and not self.half_state

    def tape(self, device: str) -> Tape:
        """An empty tape for this precision."""
        tape = Tape(device, "tf32" if self.precision == "tf32" else None, self.autocast)
        if self.half and self.master_weights:
            tape.parameter_dtype = self.precision
        return tape
