"""A captured step: the job, what each captured rank's memory holds, and what had to be assumed. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stepsight.program.job import Group, Job


@dataclass(frozen=True, slots=True)
class RankMemoryUse:
    """The allocator's peaks of one rank during the step. ``parts_bytes`` add up to the active peak;
    ``at`` names the operator at the peak."""

    rank: int
    peak_active_bytes: float
    peak_reserved_bytes: float
    parts_bytes: Mapping[str, float]
    at: str = ""


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
            each = f"{self.samples.count / self.steps:g} {self.samples.kind}"
            notes.append(f"{each} per step: the first dimension of the model's input (or state --batch)")
        if self.guessed:
            listed = ", ".join(f"{name} ×{count}" for name, count in sorted(self.guessed.items()))
            notes.append(f"no kernel is known for: {listed}; each is counted as one pass over its tensors")
        if self.assumed:
            listed = ", ".join(f"{what} ({count}×)" for what, count in sorted(self.assumed.items()))
            notes.append(f"assumed, since no GPU computed it: {listed} (--assume)")
        return tuple(notes)
