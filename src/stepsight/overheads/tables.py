"""Host overheads by operator: what the host spends around and between launches.

T1 gap before an operator, T2 its start to its first launch, T3 its last launch to its
end, T4 one launch call, T5 the gap between two launches inside it; for an operator that
launches nothing, T5 is its whole host time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from stepsight.constants import area
from stepsight.documents import write_whole
from stepsight.errors import InputError
from stepsight.inputs import read_bytes
from stepsight.program.job import HostTimes

C = area("overheads")
DIVIDE_NS = C.number("DIVIDE_NS")
HOST_GBPS = C.number("HOST_GBPS")


LAUNCH = "cudaLaunchKernel"
"""The runtime call whose T4 serves where the call is not known."""
DEFAULT_ERA = "v100"


_HostUs = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
"""No operator occupies its host for a second; a part that profiling is taken out of may end below zero."""


class Stat(msgspec.Struct, frozen=True, array_like=True):
    """Mean and standard deviation in µs of ``count`` samples; what the profiler added is not in it.

    ``profiler_us`` is the mean that was taken out, so that a profiled run can be rebuilt.
    """

    mean: _HostUs
    std: _HostUs = 0.0
    count: int = 0
    profiler_us: _HostUs = 0.0

    def scaled(self, factor: float) -> Stat:
        return Stat(self.mean * factor, self.std * factor, self.count, self.profiler_us * factor)


class OpStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one operator; a missing part falls back on its class.

    ``t5`` is the gap between launches, ``whole`` the host time when nothing is launched.
    """

    t1: Stat | None = None
    t2: Stat | None = None
    t3: Stat | None = None
    t4: Stat | None = None
    t5: Stat | None = None
    whole: Stat | None = None

    def each(self, change: Callable[[Stat], Stat]) -> OpStats:
        """Every known part changed."""
        parts = (getattr(self, name) for name in self.__struct_fields__)
        return OpStats(*(None if part is None else change(part) for part in parts))


class _File(msgspec.Struct, frozen=True):
    """The layout of an overheads JSON file."""

    host: str
    provenance: str
    ops: dict[str, OpStats]
    classes: dict[str, OpStats]
    launches: dict[str, Stat]


@dataclass(frozen=True, slots=True)
class Overheads:
    """Host overheads of one host (or one era of hosts), by operator, class and launch call."""

    ops: Mapping[str, OpStats]
    classes: Mapping[str, OpStats]
    launches: Mapping[str, Stat]
    provenance: str = ""
    host: str = ""
    _stems: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._stems.update({stem(name): name for name in self.ops})

    def known(self, op_name: str) -> bool:
        """Whether this very operator was seen, rather than only its class."""
        return self._find(op_name) is not None

    def of(self, op_name: str, launches: int | None = None, *, with_profiler: bool = False) -> HostTimes:
        """T1–T5 of an operator in µs. With ``launches=0``, T5 is its whole host time.

        Without ``launches``, T5 is the gap where the operator was ever seen to launch.
        """
        seen = self._find(op_name) or OpStats()
        group = self.classes.get(op_class(op_name)) or self.classes["forward"]
        t4 = self._mean(seen.t4 or self.launches.get(LAUNCH) or group.t4, with_profiler)
        if launches is None:
            launches = 0 if seen.t2 is None and seen.whole is not None else 1
        t5 = self._part(seen, group, "t5" if launches else "whole", with_profiler)
        t1, t2, t3 = (self._part(seen, group, name, with_profiler) for name in ("t1", "t2", "t3"))
        return HostTimes(t1, t2, t3, t4, t5)

    def spread(self, op_name: str) -> float:
        """Standard deviation over mean of the operator's host time."""
        seen = self._find(op_name) or self.classes[op_class(op_name)]
        known = [s for s in (seen.t2, seen.t3, seen.whole) if s is not None and s.mean > 0]
        return max((s.std / s.mean for s in known), default=C.UNKNOWN_VARIATION)

    def scaled(self, factor: float) -> Overheads:
        """The same on a host where everything takes ``factor`` times as long."""
        ops, classes = (
            {name: stats.each(lambda s: s.scaled(factor)) for name, stats in table.items()}
            for table in (self.ops, self.classes)
        )
        return Overheads(
            ops,
            classes,
            {k: s.scaled(factor) for k, s in self.launches.items()},
            f"{self.provenance}; times {factor:g}",
            self.host,
        )

    def over(self, fallback: Overheads) -> Overheads:
        """This set first; what it has never seen comes from ``fallback``."""
        return Overheads(
            {**fallback.ops, **self.ops},
            {k: filled(self.classes.get(k), v) for k, v in fallback.classes.items()},
            {**fallback.launches, **self.launches},
            f"{self.provenance}; else {fallback.provenance}",
            self.host,
        )

    def save(self, path: Path) -> None:
        """Write as JSON."""
        rounded = {k: v.each(_round) for k, v in sorted(self.ops.items())}
        classes = {k: v.each(_round) for k, v in sorted(self.classes.items())}
        launches = {k: _round(s) for k, s in sorted(self.launches.items())}
        file = _File(self.host, self.provenance, rounded, classes, launches)
        write_whole(path, msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")

    @classmethod
    def default(cls, era: str = DEFAULT_ERA) -> Overheads:
        """The shipped overheads of a host era (`eras` lists them); an unknown era gets the oldest."""
        name = era if era in eras() else DEFAULT_ERA
        return cls.decode((resources.files(__package__) / "defaults" / f"{name}.json").read_bytes())

    @classmethod
    def load(cls, path: Path) -> Overheads:
        """Read what `save` wrote."""
        try:
            return cls.decode(read_bytes(path))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                str(path), f"is not an overheads file ({error})", "gather it again from traces"
            ) from None

    @classmethod
    def decode(cls, content: bytes) -> Overheads:
        """From the bytes of an overheads file."""
        file = msgspec.json.decode(content, type=_File)
        missing = [c for c in OP_CLASSES if c not in file.classes]
        if missing:
            raise msgspec.ValidationError(f"no defaults for the op classes {', '.join(missing)}")
        return cls(file.ops, file.classes, file.launches, file.provenance, file.host)

    def _find(self, op_name: str) -> OpStats | None:
        name = plain_name(op_name)
        found = self.ops.get(name)
        return found if found is not None else self.ops.get(self._stems.get(stem(name), ""))

    def _part(self, seen: OpStats, group: OpStats, name: str, with_profiler: bool) -> float:
        return self._mean(getattr(seen, name) or getattr(group, name), with_profiler)

    @staticmethod
    def _mean(stat: Stat | None, with_profiler: bool) -> float:
        if stat is None:
            return 0.0
        return stat.mean + (stat.profiler_us if with_profiler else 0.0)


def eras() -> tuple[str, ...]:
    """The host eras with shipped overheads."""
    folder = resources.files(__package__) / "defaults"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".json")))


def class_defaults(ops: Mapping[str, OpStats]) -> dict[str, OpStats]:
    """One stand-in operator per class, the median of its members: no frequent or odd one rules.

    A part that no member of the class knows comes from all operators together.
    """
    members: dict[str, list[OpStats]] = {c: [] for c in OP_CLASSES}
    for name, stats in ops.items():
        members[op_class(name)].append(stats)
    everything = _typical(list(ops.values()))
    return {c: filled(_typical(m), everything) for c, m in members.items()}


def _typical(many: list[OpStats]) -> OpStats:
    def part(name: str) -> Stat | None:
        known = [s for s in (getattr(o, name) for o in many) if s is not None]
        if not known:
            return None
        middle = float(np.median([s.mean for s in known]))
        spread = float(np.std([s.mean for s in known]))
        return Stat(
            middle, spread, sum(s.count for s in known), float(np.median([s.profiler_us for s in known]))
        )

    return OpStats(*(part(name) for name in OpStats.__struct_fields__))


def filled(first: OpStats | None, second: OpStats | None) -> OpStats:
    """The first operator's parts, and the second's where it has none."""
    if first is None or second is None:
        return first or second or OpStats()
    return OpStats(*(getattr(first, n) or getattr(second, n) for n in OpStats.__struct_fields__))


def _round(s: Stat) -> Stat:
    return Stat(round(s.mean, 2), round(s.std, 2), s.count, round(s.profiler_us, 2))


def host_work_us(bytes_: float, divisions: float) -> float:
    """µs for bytes read and written and 64-bit divisions, one thread."""
    if not bytes_ and not divisions:
        return 0.0
    return bytes_ / (HOST_GBPS * 1e3) + divisions * DIVIDE_NS / 1e3


AUTOGRAD_PREFIX = "autograd::engine::evaluate_function: "
OP_CLASSES = ("forward", "view", "backward", "optimizer", "collective", "copy")
"""Ops of one class cost the host about the same; a class answers for an op never seen."""

_VIEWS = frozenset(
    {
        "_reshape_alias", "_unsafe_view", "alias", "as_strided", "broadcast_tensors", "chunk", "conj",
        "contiguous", "detach", "detach_", "empty", "empty_like", "empty_strided", "expand", "expand_as",
        "flatten", "is_nonzero", "lift_fresh", "narrow", "numpy_T", "permute", "record_stream", "reshape",
        "resize_", "resolve_conj", "resolve_neg", "result_type", "select", "set_", "size", "slice", "split",
        "split_with_sizes", "squeeze", "stride", "swapaxes", "t", "to", "transpose", "unbind", "unflatten",
        "unsqueeze", "unsqueeze_", "view", "view_as",
    }
)  # fmt: skip
_COLLECTIVE = re.compile(r"^(nccl:|c10d::|_?c10d_functional::|gloo:|record_param_comms|All2All)")
_COPY = re.compile(r"^aten::(copy_|_to_copy|pin_memory|cuda)$")
_BACKWARD = re.compile(r"(Backward\d*>?$|AccumulateGrad|_backward$|Bwd)")


def plain_name(name: str) -> str:
    """The operator's own name, without the autograd engine's prefix."""
    return name[len(AUTOGRAD_PREFIX) :] if name.startswith(AUTOGRAD_PREFIX) else name


@cache
def stem(name: str) -> str:
    """The name without the overload number that differs between torch versions (AddmmBackward0)."""
    return re.sub(r"(?<=Backward)\d+$", "", plain_name(name))


@cache
def op_class(name: str) -> str:
    """Which of `OP_CLASSES` an operator belongs to."""
    name = plain_name(name)
    if name.startswith(("Optimizer.", "aten::_foreach", "aten::_fused")):
        return "optimizer"
    if _COLLECTIVE.match(name):
        return "collective"
    if _COPY.match(name):
        return "copy"
    if _BACKWARD.search(name):
        return "backward"
    if name.startswith("aten::") and name[6:] in _VIEWS:
        return "view"
    return "forward"
