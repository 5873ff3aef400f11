"""Rank programs: what every rank does in one training step, without a single duration.

A `RankProgram` is the ordered list of host operators of one rank. Each `Op` launches
kernels or a collective on named streams, and may make a stream or the host wait. This
is the seam of stepsight: a TOML file, a trace and a captured script all end here, and
everything downstream starts here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray
from stepsight.program.variants import Kind, classify

if TYPE_CHECKING:
    from stepsight.tables.lookup import Lookup

HOST = "host"
"""The name by which a `Wait` refers to the host thread."""
COMPUTE = "compute"
"""The default stream."""
COMM = "comm"
"""The default stream of collectives (NCCL's own)."""


PLAIN = Kind()
"""A kernel that nothing sets apart from its family."""

COLLECTIVE_KINDS = (
    "all_reduce", "all_to_all", "all_to_allv", "all_gather", "reduce_scatter",
    "broadcast", "reduce", "send_recv", "barrier",
)  # fmt: skip


class Sizing(Enum):
    """How a kernel's sizes were found."""

    STATED = "stated"
    """By a description, or by the recorded inputs of the operator that launched it."""
    COUNTED = "counted"
    """By a launch grid that counts its elements."""
    UNKNOWN = "unknown"
    """Nothing states them: its time is the measured one."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel on one stream: a family with its named sizes (see ``kernels.families``).

    ``kind`` is its variant within the family and its role in training. ``operator`` is the library call that
    launches it: a label for reports and the key of a calibrated machine's measurements; models read ``kind``.
    ``dtype`` is the type the kernel computes in (``tf32`` for tensor cores on fp32 data).
    ``lookup`` carries the tables of an embedding kernel, which no list of sizes could.
    ``sizing`` is how its sizes were found, ``size_spread`` the standard deviation of ln(time) that inferred
    sizes add. ``parts``: the kernel stands for these, each that many times, in sequence without a gap in
    what the host launches; its family then only names the category.
    """

    family: str
    dims: tuple[tuple[str, float], ...] = ()
    dtype: str = "fp32"
    stream: str = COMPUTE
    operator: str = ""
    lookup: Lookup | None = None
    size_spread: float = 0.0
    parts: tuple[tuple[Kernel, int], ...] = ()
    sizing: Sizing = Sizing.STATED
    kind: Kind = PLAIN

    def __hash__(self) -> int:
        """Of what tells kernels apart in practice: they are counted and looked up by the million."""
        return hash((self.family, self.dims, self.dtype, self.operator, self.lookup, self.parts))

    @classmethod
    def of(
        cls, family: str, dtype: str = "fp32", *, operator: str = "", stream: str = COMPUTE,
        sizing: Sizing = Sizing.STATED, **dims: float,
    ) -> Kernel:  # fmt: skip
        """``Kernel.of("gemm", "bf16", m=512, n=512, k=64)``; its kind follows from the operator."""
        operator = operator or family
        kind = classify(family, operator)
        return cls(family, tuple(dims.items()), dtype, stream, operator, sizing=sizing, kind=kind)

    @property
    def label(self) -> str:
        """What reports call it."""
        return self.operator or self.family

    def dim(self, name: str, default: float = 1.0) -> float:
        for key, value in self.dims:
            if key == name:
                return value
        return default


@dataclass(frozen=True, slots=True)
class Copies:
    """Rows of an all_to_all that go to several ranks each: tokens to their experts.

    A row goes to ``count`` places, but only once to a node, and there once to a rank. The places lie in
    ``chosen`` of ``groups`` equal parts of the ranks (routing limited to groups; zero: anywhere).
    """

    count: int
    groups: int = 0
    chosen: int = 0

    def reached(self, places: int) -> float:
        """How many of these nodes or ranks a row goes to, on average."""
        able = float(places)
        if self.groups:
            able = min(able, self.chosen * max(1.0, places / self.groups))
        return able * (1 - (1 - 1 / able) ** self.count)


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective as one rank calls it.

    ``bytes`` follows nccl-tests: all_reduce, broadcast, reduce: the buffer; all_gather and
    reduce_scatter: the large buffer (all ranks' shares together); all_to_all: what one rank
    sends in all, its own share included; send_recv: the message.
    ``send_bytes`` is the n×n matrix of an all_to_allv (row sends to column); ``bytes`` is
    then the largest row sum. ``group`` names a group of the `Job`.
    ``after`` names the streams whose queued work must end before the data may move: the
    compute stream that made the input, unless the op's own waits say it better. ``size_spread`` is
    that of `Kernel`. ``count``: it stands for that many identical ones in a row. ``spans``: the ranks that
    really take part, where the job shows one of them for all that do the same. ``copies``: ``bytes`` counts
    every copy of an all_to_all's rows, which do not all travel by themselves.
    """

    kind: str
    bytes: float
    group: str = "world"
    stream: str = COMM
    dtype: str = "fp32"
    send_bytes: FloatArray | None = field(default=None, compare=False)
    name: str = ""
    after: tuple[str, ...] = (COMPUTE,)
    size_spread: float = 0.0
    count: int = 1
    spans: tuple[int, ...] = ()
    copies: Copies | None = None

    @property
    def label(self) -> str:
        """What reports call it."""
        return self.name or self.kind

    def __post_init__(self) -> None:
        if self.kind not in COLLECTIVE_KINDS:
            raise StepsightError(f"unknown collective {self.kind!r}; one of {', '.join(COLLECTIVE_KINDS)}")


@dataclass(frozen=True, slots=True)
class Wait:
    """``waiter`` (a stream or `HOST`) goes on only when ``on`` has finished.

    ``on`` is the index of an earlier op of the same program (its last kernel or its
    collective), or the name of a stream (everything queued there so far).
    """

    waiter: str
    on: int | str


@dataclass(frozen=True, slots=True)
class HostTimes:
    """An op's own host overheads T1–T5 in µs, where a trace showed them for this very op."""

    t1: float
    t2: float
    t3: float
    t4: float
    t5: float

    def total_us(self, launches: int) -> float:
        """Host time of an op with this many launches; without any, T5 is its whole time."""
        if not launches:
            return self.t1 + self.t5
        return self.t1 + self.t2 + launches * self.t4 + (launches - 1) * self.t5 + self.t3


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the tensor library below autograd: its name and its tensor inputs' sizes.

    Views cost no kernel and are left out. This is what a real run of the same model is
    compared with, call by call.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Op:
    """One host operator: waits, then launches, then perhaps blocks.

    ``blocks_host``: the host waits for the op's last kernel (``.item()``, a copy to
    pageable memory). ``shapes`` are the tensor inputs' sizes, where known. ``overhead_us`` is
    the op's own host time where a trace showed it; the platform's overheads serve otherwise.
    ``calls`` are the library calls inside it, where a builder knows them. ``framework`` names the host
    profile by which ``launches`` real launches, for which this op stands, cost the host. ``host_bytes`` are
    read and written by the host's own thread inside it, ``host_divisions`` are 64-bit divisions there: a
    loader's work on a batch. ``cuda_graph``: one launch starts all its kernels.
    """

    name: str
    kernels: tuple[Kernel, ...] = ()
    collective: Collective | None = None
    waits: tuple[Wait, ...] = ()
    blocks_host: bool = False
    phase: str = "forward"
    label: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    overhead_us: HostTimes | None = None
    calls: tuple[Call, ...] = ()
    framework: str = ""
    launches: int = 0
    host_bytes: float = 0.0
    host_divisions: float = 0.0
    cuda_graph: bool = False


@dataclass(frozen=True, slots=True)
class Period:
    """Blocks of operators that repeat (the micro batches in the steady part of a step).

    ``starts`` are the operators at which the listed blocks begin, and last where they end. ``skipped`` more
    blocks like them follow there in the real step; the simulation continues by the period. Each block holds
    ``micro_batches`` of them.
    All programs of a job list as many blocks and skip as many, and peers meet in blocks of the same number.
    """

    starts: tuple[int, ...]
    skipped: int
    micro_batches: int = 1

    def __post_init__(self) -> None:
        if len(self.starts) < 4 or self.skipped < 0:
            raise StepsightError("a period lists at least three blocks and skips none or more")


@dataclass(frozen=True, slots=True)
class RankProgram:
    """The ordered host operators of one rank (or of many ranks that do the same)."""

    ops: tuple[Op, ...]
    name: str = ""
    period: Period | None = None

    def __len__(self) -> int:
        return len(self.ops)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: the ranks that call its collectives together."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """All ranks of one training step: distinct programs, and which rank runs which.

    ``groups`` maps a group's name to the disjoint sets of ranks that carry it: a
    data-parallel job has ``{"world": (Group("world", (0, …, n-1)),)}``; tensor parallel
    pairs are ``{"tp": (Group("tp0", (0, 1)), Group("tp1", (2, 3)))}``. A collective on
    "tp" joins each rank with the peers of its own set.
    ``start_us`` is when each rank enters the step (zeros by default). ``numbers``: which ranks of the real
    job these are, where it shows some of them for all (0, 1, 2 … by default).
    """

    programs: tuple[RankProgram, ...]
    program_of_rank: tuple[int, ...]
    groups: Mapping[str, tuple[Group, ...]]
    start_us: tuple[float, ...] = ()
    numbers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.program_of_rank:
            raise StepsightError("a job needs at least one rank")
        if max(self.program_of_rank) >= len(self.programs):
            raise StepsightError("a rank names a program that the job does not have")
        for name, sets in self.groups.items():
            seen: set[int] = set()
            for group in sets:
                if seen & set(group.ranks):
                    raise StepsightError(f"process group {name!r}: a rank stands in two of its sets")
                if group.ranks and max(group.ranks) >= self.ranks:
                    raise StepsightError(
                        f"process group {name!r} names rank {max(group.ranks)} of {self.ranks}"
                    )
                seen |= set(group.ranks)

    @property
    def ranks(self) -> int:
        return len(self.program_of_rank)

    def number(self, rank: int) -> int:
        """The number of a rank in the real job."""
        return self.numbers[rank] if self.numbers else rank

    def distinct_ops(self) -> list[Op]:
        """Every operator once, however many programs share it."""
        return list({id(op): op for program in self.programs for op in program.ops}.values())

    @property
    def whole(self) -> bool:
        """Every operator of the step is listed."""
        return not any(p.period and p.period.skipped for p in self.programs)

    @classmethod
    def replicated(cls, program: RankProgram, ranks: int) -> Job:
        """Every rank runs the same program; one group, "world", holds them all."""
        return cls((program,), (0,) * ranks, world(ranks))

    @classmethod
    def of(cls, programs: Sequence[RankProgram]) -> Job:
        """Rank i runs programs[i]; programs that are the same object are shared."""
        distinct: dict[int, int] = {}
        kept: list[RankProgram] = []
        index: list[int] = []
        for program in programs:
            if id(program) not in distinct:
                distinct[id(program)] = len(kept)
                kept.append(program)
            index.append(distinct[id(program)])
        return cls(tuple(kept), tuple(index), world(len(index)))


def world(ranks: int) -> dict[str, tuple[Group, ...]]:
    """The one group that holds every rank."""
    return {"world": (Group("world", tuple(range(ranks))),)}
