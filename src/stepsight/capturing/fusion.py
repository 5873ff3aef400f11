"""A recorded step with its compiled regions fused, and what to say of it.

In a region, element-wise and reduction kernels that feed each other become one that reads what comes from
outside and writes what is used outside. Products, attention, lookups, collectives and copies to or from
the host stay. The host runs one operator for each stretch of a region instead of one for each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import log
from typing import Protocol

from stepsight.capturing.calls import CallRecord, HostOperator, Record, StepRecords
from stepsight.capturing.fused_groups import (
    Group,
    Grouping,
    Part,
    part_of,
    place,
    reads,
    traffic_bytes,
    writes,
)
from stepsight.capturing.request import Assumptions
from stepsight.program.aten.call import AtenCall, Lowered, TensorFact, read_bytes
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


class Compiled(Protocol):
    """What a capture recorded."""

    step: StepRecords
    compiled: bool


class CaptureLowering(Protocol):
    @property
    def assumptions(self) -> Assumptions: ...
    def __call__(self, call: AtenCall) -> Lowered: ...


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


def compiled_step(captured: Compiled, lower: CaptureLowering) -> tuple[StepRecords, list[str]]:
    """The step with fused kernels, and notes; as it was where nothing was compiled or ``compile=eager``."""
    if not captured.compiled or lower.assumptions.compile == "eager":
        return captured.step, []
    return fused(captured.step, lower)


def fused(step: StepRecords, lower: Lower) -> tuple[StepRecords, list[str]]:
    """``step`` with every compiled region fused, and a note with the numbers of kernels."""
    return _Fusion(step, lower).run()


class _Fusion:
    def __init__(self, step: StepRecords, lower: Lower) -> None:
        self.step = step
        self.lowered = {r.mark: lower(r.call) for r in step.records if isinstance(r, CallRecord)}
        self.narrow: dict[int, TensorFact] = {}
        """Storages that a compiled forward widened from another type: the backward reads the narrow one."""
        self.parts: dict[int, Part] = {}
        self.readers: dict[int, set[int]] = {}
        for record in step.records:
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

    def run(self) -> tuple[StepRecords, list[str]]:
        records: list[Record] = []
        for piece in _pieces(self.step.records):
            if isinstance(piece, _Stretch):
                records += self._fused(piece)
                records += piece.late
            else:
                records.append(piece)
        made = StepRecords(records, self.operators, self.silent, self.step.notes)
        return made, [self._note()]

    def _fused(self, stretch: _Stretch) -> list[CallRecord]:
        grouping = Grouping()
        for record in stretch.calls:
            part = self.parts.get(record.mark)
            if part is not None:
                grouping.fuse(part)
            elif self.lowered[record.mark].kernels:
                grouping.stays(reads(record.call), writes(record.call))
        kernels: dict[int, tuple[Kernel, ...]] = {}
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
            f" {self.after:,}, which move {self.after_bytes / 1e9:.3g} GB instead of"
            f" {self.before_bytes / 1e9:.3g} GB; two standard deviations of a fused kernel's time reach the"
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
