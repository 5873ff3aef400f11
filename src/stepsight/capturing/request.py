"""What a capturing process is asked to do, for which GPU, what it assumes, and how it answers: records, as
JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any

import msgspec

from stepsight.capturing.step import ProgramRow, RankMemoryUse, Samples
from stepsight.errors import InputError
from stepsight.hardware.spec import GpuSpec

_COMPILE = ("fused", "eager")
_RANGES = {"mask_share": (0, 1), "distinct_share": (0, 1), "expert_balance": (1, inf), "zipf": (0, inf)}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """``mask_share``: elements that an unknown mask selects. ``distinct_share``: distinct values among
    unknown ones. ``expert_balance``: the largest expert's tokens over the mean. ``zipf``: skew of lookups
    into embedding tables, 0 for uniform. ``compile``: ``fused`` models what torch.compile fuses, ``eager``
    leaves compiled functions as they were captured. ``torch``: the version whose defaults and libraries the
    job runs with (1.12), today's by default."""

    mask_share: float = 0.5
    distinct_share: float = 0.5
    expert_balance: float = 1.0
    zipf: float = 0.0
    compile: str = "fused"
    torch: str = ""

    def older_than(self, major: int, minor: int) -> bool:
        """Whether the job runs with a torch before this version."""
        return bool(self.torch) and tuple(int(n) for n in self.torch.split(".")[:2]) < (major, minor)

    @classmethod
    def read(cls, assignments: Iterable[str]) -> Assumptions:
        """From ``name=value`` as the command line gives them."""
        known = sorted(f.name for f in fields(cls))
        changed: dict[str, Any] = {}
        for text in assignments:
            name, _, value = text.partition("=")
            where = f"--assume {text}"
            if name not in known:
                raise InputError(where, f"no assumption is called {name!r}", f"one of {', '.join(known)}")
            if name == "compile" and value not in _COMPILE:
                raise InputError(where, f"must be one of {', '.join(_COMPILE)}")
            if name == "torch" and not re.fullmatch(r"\d+\.\d+(\.\d+)?", value):
                raise InputError(where, "is not a version", "write torch=1.12")
            changed[name] = _share(name, value, where) if name in _RANGES else value
        return cls(**changed)


def _share(name: str, text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(where, "its value is not a number", f"write {name}=0.5") from None
    low, high = _RANGES[name]
    if not low <= value <= high:
        raise InputError(where, f"must lie between {low:g} and {high:g}")
    return value


class FakeGpu(msgspec.Struct, frozen=True):
    """The GPU that torch.cuda describes to the script."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    multiprocessors: int
    l2_bytes: int


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run ``script`` (a file, or a module with ``module``) as ``rank`` of ``world`` and write ``answer``.

    ``steps`` optimizer steps after ``warmup`` others are recorded as one program. ``exchange`` is the folder
    in which ranks leave messages for each other. ``parent`` is the process that asks; the work ends with it.
    """

    script: str
    arguments: list[str]
    gpu: FakeGpu
    world: int
    per_node: int
    module: bool = False
    warmup: int = 2
    steps: int = 1
    assume: list[str] = []
    rank: int = 0
    answer: str = ""
    exchange: str = ""
    parent: int = 0


class MessageGroup(msgspec.Struct, array_like=True):
    """Two places that exchange messages within a family of groups."""

    name: str
    family: str
    start: int
    end: int


class Answer(msgspec.Struct):
    """``stage`` is how far the process came: starting, running, captured, or why there is no step.

    ``needs`` is the rank that must be captured before this one.
    """

    stage: str
    problem: str = ""
    needs: int = -1
    program: ProgramRow | None = None
    groups: list[tuple[str, tuple[int, ...]]] = []
    messages: list[MessageGroup] = []
    memory: RankMemoryUse | None = None
    guessed: dict[str, int] = {}
    assumed: dict[str, int] = {}
    notes: list[str] = []
    torch: str = ""
    samples: Samples = Samples()
    seconds: float = 0.0


CAPABILITIES = {
    "pascal": (6, 0), "volta": (7, 0), "turing": (7, 5), "ampere": (8, 0), "ada": (8, 9), "hopper": (9, 0),
    "blackwell": (10, 0),
}  # fmt: skip
"""Compute capability by architecture (NVIDIA's table). Boards of one architecture differ in the minor number
only, which none of torch's choices seen here asks for."""
DEFAULT_CAPABILITY = (8, 0)


def request(
    gpu: GpuSpec, script: str, arguments: Sequence[str] = (), *, world: int, per_node: int,
    module: bool = False, warmup: int = 2, steps: int = 1, assume: Sequence[str] = (),
) -> Request:  # fmt: skip
    """Capture a script (or module) on ``world`` ranks with a GPU each."""
    capability = CAPABILITIES.get(gpu.architecture, DEFAULT_CAPABILITY)
    fake = FakeGpu(gpu.name, capability, int(gpu.memory_bytes), gpu.sms, int(gpu.l2_mb * 2**20))
    return Request(
        script, list(arguments), fake, world, per_node, module, warmup, steps, list(assume)
    )  # fmt: skip
