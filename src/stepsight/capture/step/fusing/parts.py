"""What a call can be fused by: the elements it runs over, its reduction, what it reads and writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stepsight.dtypes import dtype_bytes
from stepsight.kernels.families import FAMILIES
from stepsight.program.aten.call import AtenCall, Lowered, TensorFact, lists_of_tensors, read_bytes
from stepsight.program.job import Kernel

_POINTWISE = frozenset(
    ("elementwise", "fill", "copy_d2d", "transpose", "dropout", "concat", "optimizer", "nll_loss_backward")
)
_REDUCING = frozenset(
    ("reduce", "softmax", "softmax_backward", "layer_norm", "layer_norm_backward", "batch_norm",
     "batch_norm_backward", "nll_loss")
)  # fmt: skip
_APART = frozenset(("layer_norm_weights",))
"""Kernels of a fused call that reduce along another axis: they stay kernels of their own."""
_STAY = ("scatter", "index_put", "_index_put", "_unsafe_index_put", "index_add", "index_copy", "cum",
         "logcum", "_fused_ada", "_fused_sgd", "_foreach_norm", "_foreach_max", "_amp_", "multinomial",
         "randperm", "nonzero", "masked_select", "unique")  # fmt: skip
"""Calls by how their names begin that write where values tell, scan, or are one kernel of a library."""
_WRITTEN_ONLY = frozenset(
    ("copy_", "fill_", "zero_", "uniform_", "normal_", "bernoulli_", "random_", "exponential_",
     "_foreach_copy_", "_foreach_zero_")
)  # fmt: skip
_SECOND_PASS = {"batch_norm": 1, "batch_norm_backward": 2}
"""Inputs that are read once more: a channel's statistics are needed before its first element is written."""


@dataclass(frozen=True, slots=True)
class Part:
    """A call that can be fused. ``reduction`` is rows × cols; ``many``: a call on lists of tensors."""

    mark: int
    call: AtenCall
    kernels: tuple[Kernel, ...]
    elements: int
    reads: tuple[TensorFact, ...]
    writes: tuple[TensorFact, ...]
    reduction: tuple[float, float] | None = None
    many: bool = False

    @property
    def fused(self) -> list[Kernel]:
        return [k for k in self.kernels if k.family not in _APART]

    @property
    def apart(self) -> list[Kernel]:
        return [k for k in self.kernels if k.family in _APART]

    @property
    def again_bytes(self) -> int:
        """What is read a second time."""
        times = sum(_SECOND_PASS.get(k.family, 0) for k in self.kernels)
        return sum(t.bytes for t in self.reads if t.elements == self.elements) if times else 0


def part_of(mark: int, call: AtenCall, lowered: Lowered) -> Part | None:
    """None for a call that stays as it is: products, attention, lookups, sorts, copies between devices."""
    families = {k.family for k in lowered.kernels} - _APART
    if not families or lowered.guessed or lowered.blocks_host or call.name.startswith(_STAY):
        return None
    if not families <= _POINTWISE | _REDUCING:
        return None
    reducing = next((k for k in lowered.kernels if k.family in _REDUCING), None)
    many = call.name.startswith("_foreach")
    reduction = None
    if reducing is not None:
        reduction = (reducing.dim("rows"), reducing.dim("cols"))
        elements = int(reduction[0] * reduction[1])
    elif many:
        elements = sum(t.elements for t in next(iter(lists_of_tensors(call)), ()))
    else:
        elements = (call.made_on_gpu or call.on_gpu)[0].elements
    return Part(mark, call, lowered.kernels, elements, reads(call), writes(call), reduction, many)


def reads(call: AtenCall) -> tuple[TensorFact, ...]:
    """Tensors whose values the call needs."""
    if call.name in _WRITTEN_ONLY:
        target = {id(t) for t in _target(call)}
        return tuple(t for t in call.on_gpu if id(t) not in target)
    given = call.arguments.get("out")
    return tuple(t for t in call.on_gpu if t is not given)


def writes(call: AtenCall) -> tuple[TensorFact, ...]:
    given = call.arguments.get("out")
    into = _target(call) if call.name.endswith("_") else ()
    written = (*call.made_on_gpu, *into, *((given,) if isinstance(given, TensorFact) else ()))
    return tuple({place(t): t for t in written}.values())


def _target(call: AtenCall) -> tuple[TensorFact, ...]:
    """What a call whose name ends with an underscore works on."""
    if call.name.startswith("_foreach"):
        return tuple(next(iter(lists_of_tensors(call)), ()))
    return call.inputs[:1]


def place(t: TensorFact) -> tuple[int, int, int]:
    """Which memory a tensor is; views of the same elements are one place."""
    return (t.storage, t.offset, read_bytes(t)) if t.storage >= 0 else (-1, id(t), 0)


def traffic_bytes(kernels: Iterable[Kernel]) -> float:
    """What the kernels move one by one."""
    total = 0.0
    for k in kernels:
        sizes = {name: np.array([float(value)]) for name, value in k.dims}
        total += float(FAMILIES[k.family].bytes(sizes, np.array([float(dtype_bytes(k.dtype))]))[0])
    return total
