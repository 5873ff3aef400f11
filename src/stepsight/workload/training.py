"""How a model is trained: precision, optimizer, loss scaling of the work. Shared by all kinds."""

from __future__ import annotations

from dataclasses import dataclass

from stepsight.workload.fields import Fields
from stepsight.workload.optimizers import OPTIMIZERS
from stepsight.workload.tape import Tape

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


@dataclass(frozen=True, slots=True)
class Training:
    """The ``[training]`` table.

    ``precision``: fp32; tf32 (fp32 tensors, tensor-core products); fp16, bf16 (autocast:
    fp32 parameters, products in the lower precision). ``zero_grad`` is what happens to
    gradients before a step: none drops them (torch's default), zero fills them.
    """

    precision: str = "fp32"
    optimizer: str = "sgd"
    loss: str = "bce"
    fused_optimizer: bool = False
    zero_grad: str = "none"
    dropout: float = 0.0
    attention: str = "eager"
    recompute: bool = False

    @classmethod
    def read(cls, fields: Fields, losses: tuple[str, ...], optimizer: str, dropout: float) -> Training:
        training = cls(
            precision=fields.choice("precision", PRECISIONS, "fp32"),
            optimizer=fields.choice("optimizer", OPTIMIZERS, optimizer),
            loss=fields.choice("loss", losses, losses[0]),
            fused_optimizer=fields.flag("fused_optimizer", False),
            zero_grad=fields.choice("zero_grad", ("none", "zero"), "none"),
            dropout=fields.number("dropout", dropout, most=0.99),
            attention=fields.choice("attention", ("eager", "flash"), "eager"),
            recompute=fields.flag("recompute", False),
        )
        fields.finish()
        return training

    @property
    def autocast(self) -> str | None:
        return self.precision if self.precision in ("fp16", "bf16") else None

    def tape(self, device: str) -> Tape:
        """An empty tape for this precision."""
        return Tape(device, "tf32" if self.precision == "tf32" else None, self.autocast)
