"""What a trace measured of a job's launches, kept apart from the job: a `Job` describes work, not times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from stepsight.program.job import Job, Op


@dataclass(frozen=True, slots=True)
class Observation:
    """One launch as a trace showed it.

    ``measured_us`` is its duration: it counts in replay, and where the launch is ``opaque`` (no sizes are
    known that a model could time). ``share`` is the part of the model's time that this kernel takes, where
    one library call launched several. ``correction`` multiplies the model's time: measured ÷ modelled.
    ``late_us`` is added to any time. Of a kernel: a delay before it that no recorded wait explains, of which
    ``waited_us`` ended together with other work. Of a collective: how long after the recorded ranks the ranks
    without a trace arrive.
    """

    measured_us: float | None = None
    late_us: float = 0.0
    waited_us: float = 0.0
    share: float = 1.0
    correction: float = 1.0
    opaque: bool = False


UNOBSERVED = Observation()
OpObservations = tuple[Observation, ...]
"""Of an operator's launches in order: its kernels, then its collective. Empty: nothing was observed."""
Observations = tuple[tuple[OpObservations, ...], ...]
"""By program and operator of a job. Empty: nothing was observed."""
Change = Callable[[Op, OpObservations], tuple[Op, OpObservations]]


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A job with what was measured of it."""

    job: Job
    seen: Observations = ()

    def __post_init__(self) -> None:
        shape = [len(p.ops) for p in self.job.programs]
        if self.seen and [len(ops) for ops in self.seen] != shape:
            raise ValueError("observations do not match the job's operators")

    def of_program(self, number: int) -> Iterator[tuple[Op, OpObservations]]:
        """The operators of one program, each with one observation per launch."""
        ops = self.job.programs[number].ops
        if not self.seen:
            return ((op, of_launches(op, ())) for op in ops)
        return ((op, of_launches(op, seen)) for op, seen in zip(ops, self.seen[number], strict=True))

    def ops(self) -> Iterator[tuple[Op, OpObservations]]:
        """The operators of all programs."""
        return (pair for number in range(len(self.job.programs)) for pair in self.of_program(number))

    def each(self, change: Change) -> ObservedJob:
        """The job with every operator and its observations changed."""
        changed = [[change(*pair) for pair in self.of_program(n)] for n in range(len(self.job.programs))]
        programs = tuple(
            replace(program, ops=tuple(op for op, _ in pairs))
            for program, pairs in zip(self.job.programs, changed, strict=True)
        )
        seen = tuple(tuple(found for _, found in pairs) for pairs in changed)
        return ObservedJob(replace(self.job, programs=programs), seen)


def of_launches(op: Op, seen: OpObservations) -> OpObservations:
    """One observation per launch, `UNOBSERVED` where nothing was."""
    return seen or (UNOBSERVED,) * (len(op.kernels) + (op.collective is not None))


def of_collective(op: Op, seen: OpObservations) -> Observation:
    """The observation of an operator's collective."""
    return seen[-1] if seen and op.collective is not None else UNOBSERVED


def with_collective(seen: OpObservations, observation: Observation) -> OpObservations:
    """The observations of an operator with a collective, that of the collective replaced."""
    return (*seen[:-1], observation)
