"""A recorded step with its compiled regions fused, and what to say of it.

In a region, element-wise and reduction kernels that feed each other become one that reads what comes from
outside and writes what is used outside. Products, attention, lookups, collectives and copies to or from
the host stay. The host runs one operator for each stretch of a region instead of one for each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import log

from stepsight.capturing.calls import CallRecord, HostOperator, Record, StepRecords
from stepsight.capturing.inductor import as_compiled, padded
from stepsight.kernels.columns import batches
from stepsight.program.aten.call import AtenCall, Lowered, TensorFact, lists_of_tensors, read_bytes
from stepsight.program.job import Kernel
from stepsight.program.variants import classify

FORWARD = "Torch-Compiled Region"
"""A compiled graph's host operator as torch names it; overheads answer by its class."""
CONTINUED = "CompiledFunction"
"""The same graph after a collective: its guards and its start are paid for."""
BACKWARD = "CompiledFunctionBackward"
_ACCUMULATE = "AccumulateGrad"
_OPTIMIZER = "Optimizer."

Lower = Callable[[AtenCall], Lowered]

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
        return tuple(t for t in call.inputs[len(_target(call)) :] if t.device == "cuda")
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
    return sum(float(batch.bytes.sum()) for batch in batches(list(kernels)))


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
        makers = list(dict.fromkeys(g for t in part.reads if (g := self._maker.get(t.storage)) is not None))
        latest = self._latest(part, makers)
        able = [g for g in makers if g.takes(part) and g.order >= latest]
        if able:
            home = max(able, key=lambda g: g.order)
        else:
            home = self._new()
            home.elements, home.mark = part.elements, part.mark
            self.groups.append(home)
        home.add(part)
        self._place(home, part.reads, part.writes)
        for other in makers:
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


@dataclass(slots=True)
class _Stretch:
    """Calls of one graph, one direction and one stream with nothing between that orders streams."""

    calls: list[CallRecord] = field(default_factory=list)
    late: list[CallRecord] = field(default_factory=list)
    """Accumulated gradients: autograd adds them up once the graph's backward has returned."""

    def takes(self, record: CallRecord) -> bool:
        first = self.calls[0]
        same = (record.graph, record.stream, bool(record.call.node))
        return same == (first.graph, first.stream, bool(first.call.node))


def fused(step: StepRecords, lower: Lower) -> tuple[StepRecords, str]:
    """``step`` with every compiled region fused, and a note with the numbers of kernels."""
    return _Fusion(step, lower).run()


class _Fusion:
    def __init__(self, step: StepRecords, lower: Lower) -> None:
        self.step = step
        self.records = as_compiled(step.records)
        self.lowered = {r.mark: lower(r.call) for r in self.records if isinstance(r, CallRecord)}
        self.narrow: dict[int, TensorFact] = {}
        """Storages that a compiled forward widened from another type: the backward reads the narrow one."""
        self.parts: dict[int, Part] = {}
        self.readers: dict[int, set[int]] = {}
        for record in self.records:
            if isinstance(record, CallRecord) and self.lowered[record.mark].kernels:
                self._classify(record)
        self.operators = dict(step.operators)
        self.silent = list(step.silent)
        self.before = self.after = 0
        self.entered: set[int] = set()
        self.before_bytes = self.after_bytes = 0.0

    def _classify(self, record: CallRecord) -> None:
        call = record.call
        part = part_of(record.mark, call, self.lowered[record.mark]) if record.graph else None
        needed = reads(call)
        if part is not None:
            if call.name == "_to_copy" and not call.node and part.reads and _widens(part):
                self.narrow[part.writes[0].storage] = part.reads[0]
            if call.node:
                needed = tuple(self.narrow.get(t.storage, t) for t in part.reads)
                part = replace(part, reads=needed)
            self.parts[record.mark] = part
        for t in needed:
            self.readers.setdefault(t.storage, set()).add(record.mark)

    def run(self) -> tuple[StepRecords, str]:
        records: list[Record] = []
        for piece in _pieces(self.records):
            if isinstance(piece, _Stretch):
                records += self._fused(piece)
                records += piece.late
            else:
                records.append(piece)
        return StepRecords(records, self.operators, self.silent), self._note()

    def _fused(self, stretch: _Stretch) -> list[CallRecord]:
        grouping = Grouping()
        for record in stretch.calls:
            part = self.parts.get(record.mark)
            if part is not None:
                grouping.fuse(part)
            elif self.lowered[record.mark].kernels:
                grouping.stays(reads(record.call), writes(record.call))
        kernels: dict[int, tuple[Kernel, ...]] = {}
        for record in stretch.calls:
            if record.graph and record.mark not in self.parts:
                given = self.lowered[record.mark].kernels
                made = tuple(k for kernel in given for k in padded(kernel))
                if made != given:
                    kernels[record.mark] = made
        for group in grouping.groups:
            marks = [p.mark for p in group.parts]
            kernels.update(dict.fromkeys(marks, ()))
            kernels[group.mark] = self._kernels(group)
            self.before += sum(len(p.kernels) for p in group.parts)
            self.after += len(kernels[group.mark])
        self._host(stretch)
        return [replace(r, kernels=kernels[r.mark]) if r.mark in kernels else r for r in stretch.calls]

    def _kernels(self, group: Group) -> tuple[Kernel, ...]:
        eager = [k for p in group.parts for k in p.fused]
        eager_bytes = traffic_bytes(eager)
        self.before_bytes += eager_bytes
        if len(eager) == 1:
            self.after_bytes += eager_bytes
            return group.parts[0].kernels
        read, written = self._outside(group)
        again = sum(p.again_bytes for p in group.parts)
        read_total, write_total = read + again, float(sum(t.bytes for t in written))
        scale = min(eager_bytes / max(read_total + write_total, 1.0), 1.0)
        read_total, write_total = scale * read_total, scale * write_total
        self.after_bytes += read_total + write_total
        largest = max(written, key=lambda t: t.bytes, default=None)
        dtype = largest.dtype if largest is not None else eager[-1].dtype
        sizes = {"elements": float(max(group.elements, 1)), "read_bytes": read_total,
                 "write_bytes": write_total}  # fmt: skip
        family = "optimizer" if group.parts[0].many else "elementwise"
        if family == "optimizer":
            sizes["tensors"] = float(max(len(p.writes) for p in group.parts))
        spread = 0.5 * log(max(eager_bytes / max(read_total + write_total, 1.0), 1.0))
        name = _name(group)
        one = Kernel(family, tuple(sizes.items()), dtype, operator=name, size_spread=spread,
                     kind=classify(family, name))  # fmt: skip
        return (one, *(k for p in group.parts for k in p.apart))

    def _outside(self, group: Group) -> tuple[float, list[TensorFact]]:
        """Bytes read that the group does not make itself, and what it writes that is used outside."""
        marks = {p.mark for p in group.parts}
        made: set[int] = set()
        old: set[int] = set()
        read: dict[tuple[int, int, int], float] = {}
        written: dict[tuple[int, int, int], TensorFact] = {}
        for part in group.parts:
            for t in part.reads:
                if t.storage not in made:
                    old.add(t.storage)
                    read[place(t)] = float(read_bytes(t))
            for t in part.writes:
                made.add(t.storage)
                written[place(t)] = t
        kept = [
            t
            for t in written.values()
            if t.storage in old or t.storage < 0 or not self.readers.get(t.storage, set()) <= marks
            or not self.readers.get(t.storage)
        ]  # fmt: skip
        return sum(read.values()), kept

    def _host(self, stretch: _Stretch) -> None:
        """One host operator for the stretch, which also takes the place of views between its calls."""
        owners = [self.operators[r.mark] for r in stretch.calls if r.mark in self.operators]
        launching = any(self.lowered[r.mark].kernels for r in stretch.calls)
        if not owners or not launching or any(o.name.startswith(_OPTIMIZER) for o in owners):
            return
        start, end = min(o.start_ns for o in owners), max(o.start_ns for o in owners)
        backward = bool(stretch.calls[0].call.node)
        graph = stretch.calls[0].graph
        forward = CONTINUED if graph in self.entered else FORWARD
        self.entered.add(graph)
        replayed = stretch.calls[0].cuda_graph
        one = HostOperator(BACKWARD if backward else forward, start, owners[0].thread, replayed)
        for record in stretch.calls:
            self.operators[record.mark] = one
        self.silent = [
            s for s in self.silent if s.thread != one.thread or not start <= s.start_ns <= end
        ]  # fmt: skip

    def _note(self) -> str:
        if not self.before:
            return "torch.compile: nothing of the recorded step ran in a compiled function"
        return (
            f"torch.compile, approximated: {self.before:,} element-wise and reduction kernels fused into"
            f" {self.after:,}, which move {self.after_bytes / 1e9:,.1f} GB instead of"
            f" {self.before_bytes / 1e9:,.1f} GB; two standard deviations of a fused kernel's time reach the"
            " traffic of the kernels it replaces; graph breaks and Inductor's choices are not known"
            " (--assume compile=eager: without fusion)"
        )


def _pieces(records: list[Record]) -> Iterator[_Stretch | Record]:
    stretch: _Stretch | None = None
    for record in records:
        if isinstance(record, CallRecord):
            if stretch is not None and record.graph and stretch.takes(record):
                stretch.calls.append(record)
                continue
            if stretch is not None and not record.graph and _ACCUMULATE in record.call.node:
                stretch.late.append(record)
                continue
        if stretch is not None:
            yield stretch
            stretch = None
        if isinstance(record, CallRecord) and record.graph:
            stretch = _Stretch([record])
        else:
            yield record
    if stretch is not None:
        yield stretch


def _widens(part: Part) -> bool:
    source, made = part.reads[0], part.writes[0]
    return source.elements == made.elements and source.bytes < made.bytes


def _name(group: Group) -> str:
    """As Inductor names its kernels: by what they compute, each once, in order."""
    names = list(dict.fromkeys(p.call.name.strip("_") for p in group.parts))
    more = "" if len(names) <= 6 else f"_and_{len(names) - 6}_more"
    kind = "red" if group.reduction else "poi"
    return f"triton_{kind}_fused_{'_'.join(names[:6])}{more}"
