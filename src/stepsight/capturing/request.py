"""What a capturing process is asked to do, for which GPU, what it assumes, and how it answers: records, as
JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from stepsight.capturing.step import ProgramRow, RankMemoryUse, Samples
from stepsight.errors import InputError
from stepsight.hardware.spec import GpuSpec, PlatformSpec

_COMPILE = ("fused", "eager")


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
        known = {f.name for f in fields(cls)}
        changed: dict[str, Any] = {}
        for text in assignments:
            name, _, value = text.partition("=")
            if name not in known:
                raise InputError(
                    f"--assume {text}",
                    f"no assumption is called {name!r}",
                    f"one of {', '.join(sorted(known))}",
                )
            if name == "compile":
                if value not in _COMPILE:
                    raise InputError(f"--assume {text}", f"must be one of {', '.join(_COMPILE)}")
                changed[name] = value
                continue
            if name == "torch":
                if not re.fullmatch(r"\d+\.\d+(\.\d+)?", value):
                    raise InputError(f"--assume {text}", "is not a version", "write torch=1.12")
                changed[name] = value
                continue
            try:
                number = float(value)
            except ValueError:
                raise InputError(
                    f"--assume {text}", "its value is not a number", f"write {name}=0.5"
                ) from None
            highest = 1.0 if name.endswith("_share") else float("inf")
            lowest = 1.0 if name == "expert_balance" else 0.0
            if not lowest <= number <= highest:
                raise InputError(f"--assume {text}", f"must lie between {lowest:g} and {highest:g}")
            changed[name] = number
        return cls(**changed)


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """Run ``script`` (a file, or a module with ``module``) as ``rank`` of ``world`` and write ``answer``.

    ``parent`` is the process that asks; the work ends with it.
    """

    script: str
    arguments: list[str]
    answer: str
    rank: int
    world: int
    per_node: int
    gpu_name: str
    capability: tuple[int, int]
    memory_bytes: int
    multiprocessors: int
    l2_bytes: int
    module: bool = False
    warmup: int = 2
    steps: int = 1
    assume: list[str] = []
    exchange: str = ""
    parent: int = 0
    guard: bool = True
    """Install a device guard; without it C++ sees another device (see gpu.guard)."""


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
    rank: int = 0
    program: ProgramRow | None = None
    groups: list[tuple[str, list[int]]] = []
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
    platform: PlatformSpec, script: str, arguments: Sequence[str] = (), *, world: int = 0,
    module: bool = False, warmup: int = 2, steps: int = 1, assume: Sequence[str] = (),
) -> Request:  # fmt: skip
    """Capture a script (or module) for a platform; on all its GPUs unless ``world`` says otherwise."""
    return gpu_request(
        platform.gpu, script, arguments, world=world or platform.ranks, per_node=platform.gpus_per_node,
        module=module, warmup=warmup, steps=steps, assume=assume,
    )  # fmt: skip


def gpu_request(
    gpu: GpuSpec, script: str, arguments: Sequence[str] = (), *, world: int, per_node: int,
    module: bool = False, warmup: int = 2, steps: int = 1, assume: Sequence[str] = (),
) -> Request:  # fmt: skip
    return Request(
        script, list(arguments), "", 0, world, per_node, gpu.name,
        CAPABILITIES.get(gpu.architecture, DEFAULT_CAPABILITY), int(gpu.memory_bytes), gpu.sms,
        int(gpu.l2_mb * 2**20), module, warmup, steps, list(assume),
    )  # fmt: skip
