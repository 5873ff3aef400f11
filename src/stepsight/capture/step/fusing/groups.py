"""Which calls of a compiled region become one kernel.

Calls are taken in their order. One joins the kernel that makes an input of it where both run over the same
elements, the kernel then reduces along one axis at most, and everything else it reads exists by then:
kernels have an order, and a call joins only a kernel that is not before what the call depends on. Then
kernels that feed it join as well; a small element-wise one is computed again for every element that needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepsight.capture.step.fusing.parts import Part
from stepsight.program.aten.call import TensorFact

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
