"""What a call can be fused by: the elements it runs over, its reduction, what it reads and writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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


MOST = 64
"""Calls in one kernel (torch._inductor.config.max_fusion_size)."""


@dataclass(slots=True, eq=False)
class Group:
    """A kernel to be, or (without parts) one that stays. ``needs`` is the latest kernel it depends on,
    ``needed_by`` the first that depends on it."""

    order: int
    mark: int = -1
    """The call at whose place it is launched."""
    parts: list[Part] = field(default_factory=list)
    elements: int = 0
    reduction: tuple[float, float] | None = None
    needs: int = -1
    needed_by: float = float("inf")

    def takes(self, part: Part) -> bool:
        first = self.parts[0] if self.parts else None
        if first is None or len(self.parts) >= MOST or first.many != part.many:
            return False
        if part.reduction is not None:
            return part.elements == self.elements and self.reduction in (None, part.reduction)
        return part.elements == self.elements or (
            self.reduction is not None and part.elements == self.reduction[0]
        )

    def add(self, part: Part) -> None:
        self.parts.append(part)
        self.reduction = self.reduction or part.reduction


class Grouping:
    """The groups of one stretch of calls."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._count = 0
        self._maker: dict[int, Group] = {}
        self._users: dict[int, list[Group]] = {}

    def stays(self, reads: tuple[TensorFact, ...], writes: tuple[TensorFact, ...]) -> None:
        """A call that is not fused."""
        self._place(self._new(), reads, writes)

    def fuse(self, part: Part) -> None:
        makers = {id(g): g for t in part.reads if (g := self._maker.get(t.storage)) is not None}
        latest = self._latest(part, list(makers.values()))
        able = [g for g in makers.values() if g.takes(part) and g.order >= latest]
        if able:
            home = max(able, key=lambda g: g.order)
        else:
            home = self._new()
            home.elements, home.mark = part.elements, part.mark
            self.groups.append(home)
        home.add(part)
        self._place(home, part.reads, part.writes)
        for other in makers.values():
            if other is not home and other.parts:
                home = self._merged(other, home)

    def _new(self) -> Group:
        self._count += 1
        return Group(self._count)

    def _latest(self, part: Part, makers: list[Group]) -> int:
        """The last kernel that must not come after the part: those it reads from, and those that use
        what it overwrites."""
        overwritten = (g for t in part.writes for g in self._users.get(t.storage, ()))
        return max((g.order for g in (*makers, *overwritten)), default=-1)

    def _place(self, group: Group, reads: tuple[TensorFact, ...], writes: tuple[TensorFact, ...]) -> None:
        for t in reads:
            maker = self._maker.get(t.storage)
            if maker is not None and maker is not group:
                group.needs = max(group.needs, maker.order)
                maker.needed_by = min(maker.needed_by, group.order)
            if t.storage >= 0:
                self._users.setdefault(t.storage, []).append(group)
        for t in writes:
            if t.storage >= 0:
                self._maker[t.storage] = group
                self._users.setdefault(t.storage, []).append(group)

    def _merged(self, one: Group, other: Group) -> Group:
        """Both as one kernel where their elements, axes and order allow it; else ``other`` unchanged."""
        early, late = sorted((one, other), key=lambda g: g.order)
        if early.parts[0].many != late.parts[0].many or len(early.parts) + len(late.parts) > MOST:
            return other
        identical = _identical(early, late)
        inlined = early.reduction is None and early.elements < late.elements
        if early.needed_by >= late.order and (identical or inlined):
            kept, gone = late, early
        elif late.needs <= early.order and identical:
            kept, gone = early, late
        else:
            return other
        kept.parts = sorted((*early.parts, *late.parts), key=lambda p: p.mark)
        kept.reduction = early.reduction or late.reduction
        kept.elements = max(early.elements, late.elements)
        kept.needs = max((n for n in (early.needs, late.needs) if n < kept.order), default=-1)
        later = [n for n in (early.needed_by, late.needed_by) if n > kept.order]
        kept.needed_by = min(later, default=float("inf"))
        self._maker = {s: kept if g is gone else g for s, g in self._maker.items()}
        self._users = {s: [kept if g is gone else g for g in us] for s, us in self._users.items()}
        self.groups.remove(gone)
        gone.parts = []
        return kept


def _identical(one: Group, other: Group) -> bool:
    """Whether one loop can compute both: the same elements, or the rows of the other's reduction."""
    if one.reduction and other.reduction and one.reduction != other.reduction:
        return False
    if one.elements == other.elements:
        return True
    small, large = sorted((one, other), key=lambda g: g.elements)
    return small.reduction is None and large.reduction is not None and small.elements == large.reduction[0]
