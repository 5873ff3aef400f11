"""A captured step: the job, what each captured rank's memory holds, what had to be assumed; and its file,
step.json. No torch.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepsight.documents import write_whole
from stepsight.errors import InputError, StepsightError
from stepsight.inputs import read_bytes
from stepsight.program.job import COMPUTE, Collective, Group, Job, Kernel, Op, RankProgram, Wait
from stepsight.program.variants import classify
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import Lookup, TableLookup

ACTIVATIONS = "activations_and_temporaries"


@dataclass(frozen=True, slots=True)
class RankMemoryUse:
    """The allocator's peaks of one rank during the step. ``parts_bytes`` add up to the active peak;
    ``at`` names the operator at the peak."""

    rank: int
    peak_active_bytes: float
    peak_reserved_bytes: float
    parts_bytes: Mapping[str, float]
    at: str = ""

    def of_batch(self, factor: float) -> RankMemoryUse:
        """The same with ``factor`` times the batch: activations follow it, nothing else does."""
        held = self.parts_bytes.get(ACTIVATIONS, 0.0)
        more = (factor - 1) * held
        return replace(
            self, parts_bytes={**self.parts_bytes, ACTIVATIONS: held + more} if held else self.parts_bytes,
            peak_active_bytes=self.peak_active_bytes + more,
            peak_reserved_bytes=self.peak_reserved_bytes + more,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Samples:
    """What the recorded steps train: images, sequences of ``length`` tokens, or samples; none where unknown.
    ``stated``: by the user; otherwise read off the first dimension of the model's input."""

    count: int = 0
    kind: str = "samples"
    length: int = 0
    stated: bool = False


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """What `stepsight capture` found. ``steps`` optimizer steps make up the job's program.

    ``guessed`` counts calls whose kernel is a generic pass over their tensors, ``assumed`` the values that
    only a GPU would know. ``samples`` are those of all ranks. ``replicated``: every rank runs the first
    program and every group is all ranks, so that the step can run on any number of them (`over`).
    """

    name: str
    gpu: str
    job: Job
    memory: tuple[RankMemoryUse, ...] = ()
    steps: int = 1
    guessed: Mapping[str, int] | None = None
    assumed: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()
    torch: str = ""
    samples: Samples = Samples()
    replicated: bool = False

    def over(self, ranks: int) -> CapturedStep:
        """A replicated step on another number of ranks: each has the same share of the batch."""
        if not self.replicated or ranks == self.ranks:
            return self
        groups = {name: (Group(name, tuple(range(ranks))),) for name in self.job.groups}
        return replace(
            self,
            job=Job(self.job.programs[:1], (0,) * ranks, groups),
            samples=replace(self.samples, count=self.samples.count * ranks // self.ranks),
        )

    @property
    def ranks(self) -> int:
        return self.job.ranks

    @property
    def fullest(self) -> RankMemoryUse | None:
        """The rank that reserves most."""
        return max(self.memory, key=lambda m: m.peak_reserved_bytes, default=None)

    def all_notes(self) -> tuple[str, ...]:
        """Everything a reader of the prediction should know about the capture."""
        notes = list(self.notes)
        if self.samples.count and not self.samples.stated:
            count = self.samples.count / self.steps
            each = f"{count:,.{0 if count == int(count) else 1}f} {self.samples.kind}"
            notes.append(f"{each} per step: the first dimension of the model's input (or state --batch)")
        if self.guessed:
            listed = ", ".join(f"{name} ×{count}" for name, count in sorted(self.guessed.items()))
            notes.append(f"no kernel is known for: {listed}; each is counted as one pass over its tensors")
        if self.assumed:
            listed = ", ".join(f"{what} ({count}×)" for what, count in sorted(self.assumed.items()))
            notes.append(f"assumed, since no GPU computed it: {listed} (--assume)")
        return tuple(notes)


FORMAT = "stepsight-step"
_MOST = 1e18
"""No size of a kernel, not even in bytes or FLOPs, comes near."""
_MOST_SPREAD = 10.0
"""A kernel that may take 20,000 times as long is not known at all."""
VERSION = 1


class KernelRow(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    family: str
    dtype: str
    stream: str
    name: str
    dims: list[tuple[str, float]]
    lookup: dict[str, Any] | None = None
    size_spread: float = 0.0


class CollectiveRow(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    kind: str
    bytes: float
    group: str
    stream: str
    dtype: str
    name: str
    after: list[str]
    send_bytes: list[list[float]] | None = None


class OpRow(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """An operator; names and kernels are positions in the program's lists."""

    name: int
    kernels: list[int] = []
    collective: CollectiveRow | None = None
    waits: list[tuple[str, int | str]] = []
    blocks_host: bool = False
    phase: str = "forward"
    cuda_graph: bool = False


class ProgramRow(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    names: list[str]
    kernels: list[KernelRow]
    ops: list[OpRow]


class StepFile(msgspec.Struct, omit_defaults=True):
    format: str
    version: int
    name: str
    gpu: str
    programs: list[ProgramRow]
    program_of_rank: list[int]
    groups: dict[str, list[list[int]]]
    memory: list[RankMemoryUse] = []
    steps: int = 1
    guessed: dict[str, int] = {}
    assumed: dict[str, int] = {}
    notes: list[str] = []
    torch: str = ""
    samples: Samples = Samples()
    replicated: bool = False


_EAGER = "eager"
"""The host profile of modules as PyTorch runs them: the one that described models have, per launch."""
_OWN_HOST_TIMES = ("Optimizer.", "Torch-Compiled Region", "CompiledFunction", "aten::block_diag")
"""Operators that launch much at once, without Python between launches: timed by name."""


def encode_program(program: RankProgram) -> ProgramRow:
    """Operators' names and kernels are written once each."""
    names: dict[str, int] = {}
    kernels: dict[Kernel, int] = {}
    ops = []
    for op in program.ops:
        c, row = op.collective, None
        if c is not None:
            sizes = c.send_bytes.tolist() if c.send_bytes is not None else None
            row = CollectiveRow(c.kind, c.bytes, c.group, c.stream, c.dtype, c.name, list(c.after), sizes)
        launched = [kernels.setdefault(k, len(kernels)) for k in op.kernels]
        waits = [(w.waiter, w.on) for w in op.waits]
        name = names.setdefault(op.name, len(names))
        ops.append(OpRow(name, launched, row, waits, op.blocks_host, op.phase, op.cuda_graph))
    rows = [
        KernelRow(
            k.family, k.dtype, k.stream, k.operator, [(name, float(value)) for name, value in k.dims],
            _lookup_row(k.lookup), k.size_spread,
        )
        for k in kernels
    ]  # fmt: skip
    return ProgramRow(program.name, list(names), rows, ops)


def _lookup_row(lookup: Lookup | None) -> dict[str, Any] | None:
    if lookup is None:
        return None
    tables = [{"rows": t.rows, "dim": t.dim, "batch": t.batch, "pooling": t.pooling,
               "indices": t.indices.value, "dtype": t.dtype} for t in lookup.tables]  # fmt: skip
    return {"tables": tables, "optimizer": lookup.optimizer, "fused": lookup.fused}


def _lookup(row: dict[str, Any] | None) -> Lookup | None:
    if row is None:
        return None
    tables = tuple(
        TableLookup(**{**t, "indices": IndexDistribution.parse(t["indices"], "lookup")})
        for t in row["tables"]
    )
    return Lookup(tables, row["optimizer"], row["fused"])


def decode_program(row: ProgramRow) -> RankProgram:
    kernels = [_kernel(k) for k in row.kernels]
    ops = []
    for op in row.ops:
        name, launched = row.names[op.name], tuple(kernels[i] for i in op.kernels)
        collective = _collective(op.collective) if op.collective else None
        eager = op.phase in ("forward", "backward") and not name.startswith(_OWN_HOST_TIMES)
        ops.append(
            Op(
                name, launched, collective, tuple(Wait(waiter, on) for waiter, on in op.waits),
                op.blocks_host, op.phase, cuda_graph=op.cuda_graph, framework=_EAGER if eager else "",
                launches=len(launched) + (collective is not None) if eager else 0,
            )
        )  # fmt: skip
    return RankProgram(tuple(ops), row.name)


def _kernel(k: KernelRow) -> Kernel:
    if not all(math.isfinite(value) and 0 <= value <= _MOST for _, value in k.dims):
        raise ValueError(f"kernel {k.name!r} has a size that cannot be")
    if not 0 <= k.size_spread <= _MOST_SPREAD:
        raise ValueError(f"kernel {k.name!r} has a spread that cannot be")
    return Kernel(
        k.family, tuple(k.dims), k.dtype, k.stream or COMPUTE, k.name, _lookup(k.lookup),
        size_spread=k.size_spread, kind=classify(k.family, k.name),
    )  # fmt: skip


def _collective(c: CollectiveRow) -> Collective:
    if not (math.isfinite(c.bytes) and 0 <= c.bytes <= _MOST):
        raise ValueError(f"collective {c.name!r} moves {c.bytes} bytes")
    sizes = np.array(c.send_bytes) if c.send_bytes is not None else None
    return Collective(c.kind, c.bytes, c.group, c.stream, c.dtype, sizes, c.name, after=tuple(c.after))


def encode(step: CapturedStep) -> bytes:
    job = step.job
    return msgspec.json.encode(
        StepFile(
            FORMAT, VERSION, step.name, step.gpu, [encode_program(p) for p in job.programs],
            list(job.program_of_rank),
            {name: [list(g.ranks) for g in sets] for name, sets in job.groups.items()},
            list(step.memory), step.steps, dict(step.guessed or {}),
            dict(step.assumed or {}), list(step.notes), step.torch, step.samples,
        )
    )  # fmt: skip


def save_step(step: CapturedStep, path: Path) -> None:
    write_whole(path, encode(step))


def load_step(path: str | Path) -> CapturedStep:
    """The captured step in a file that ``stepsight capture --save`` wrote, or a shipped one by its name."""
    name = _shipped(path)
    if name is None:
        return decode(read_bytes(path), str(path))
    packed = (resources.files("stepsight.capturing") / "shipped" / f"{name}.json.gz").read_bytes()
    return decode(gzip.decompress(packed), name)


_SHIPPED = {
    "resnet50": "resnet50", "rn50": "resnet50", "stablediffusion": "stable-diffusion",
    "stablediffusion2": "stable-diffusion", "sd": "stable-diffusion", "sd2": "stable-diffusion",
}  # fmt: skip
"""Steps that come with the package, by the names that people type (letters and digits)."""


def _shipped(path: str | Path) -> str | None:
    name = _SHIPPED.get("".join(c for c in str(path).lower() if c.isalnum()))
    return name if name and not Path(path).exists() else None


def is_step_file(path: Path) -> bool:
    """Whether a JSON file is a captured step, as its first bytes state, or the name of a shipped one."""
    if _shipped(path):
        return True
    try:
        with path.open("rb") as file:
            return FORMAT.encode() in file.read(200)
    except OSError:
        return False


def decode(content: bytes, where: str) -> CapturedStep:
    fix = "write it again with stepsight capture --save"
    try:
        row = msgspec.json.decode(content, type=StepFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(where, f"is not a captured step: {error}", fix) from None
    if row.format != FORMAT or row.version != VERSION:
        raise InputError(
            where, f"has format {row.format!r} version {row.version}", f"this is {FORMAT} {VERSION}"
        )
    _check_ranks(row, where, fix)
    try:
        job = Job(
            tuple(decode_program(p) for p in row.programs), tuple(row.program_of_rank),
            {name: tuple(Group(f"{name} {i}" if len(sets) > 1 else name, tuple(ranks))
                         for i, ranks in enumerate(sets)) for name, sets in row.groups.items()},
        )  # fmt: skip
    except (IndexError, KeyError, TypeError, ValueError, StepsightError) as error:
        raise InputError(where, f"does not hold together: {error}", fix) from None
    return CapturedStep(
        row.name, row.gpu, job, tuple(row.memory), row.steps, row.guessed, row.assumed, tuple(row.notes),
        row.torch, row.samples, row.replicated,
    )  # fmt: skip


def _check_ranks(row: StepFile, where: str, fix: str) -> None:
    """Every rank runs a program that does something, and groups hold ranks that exist."""
    working = [any(op.kernels or op.collective for op in program.ops) for program in row.programs]
    ranks = len(row.program_of_rank)
    if not ranks or not all(0 <= p < len(working) and working[p] for p in row.program_of_rank):
        raise InputError(where, "holds a rank that does nothing", fix)
    sets = [ranks_of for groups in row.groups.values() for ranks_of in groups]
    whole_groups = all(row.groups.values())
    if not whole_groups or not all(members and all(0 <= r < ranks for r in members) for members in sets):
        raise InputError(where, "holds a group of ranks that are not there", fix)
