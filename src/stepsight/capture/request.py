"""What a capturing process is asked to do, and how it answers: plain records, written as JSON."""

from __future__ import annotations

import msgspec

from stepsight.capture.step.captured import RankMemoryUse, Samples
from stepsight.capture.step.file import ProgramRow


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
    """Install a device guard; without it C++ is told another device (see gpu.meta_answer)."""


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
