"""A tape with only the launches that a plan changes; all that is fixed between them is one.

On one stream, a run of launches with known times ends at ``max(clock, ready*) + total``,
where ``ready*`` is the moment from which none of them would have to wait for the host. So a
run of fixed launches is exactly one launch, and the walk of a thousand plans gets shorter
by the number of launches that no plan touches.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray, IntArray
from stepsight.simulate.engine import Priced
from stepsight.simulate.lowering import Join, Lane, LoweredProgram, Meeting, Stretch


@dataclass(frozen=True, slots=True)
class Condensed:
    """A shorter lane with its times; ``launch_of`` finds a kept launch of the full tape in it."""

    lane: Lane
    times: Priced
    launch_of: dict[int, int]


def condense(
    lane: Lane, times: Priced, varying: Collection[int], *, synchronous: bool, gap_us: float = 0.0
) -> Condensed:
    """The same walk with fewer launches; those in ``varying`` and all collectives stay.

    ``gap_us`` is what the walk leaves between kernels of one stream.
    """
    builder = _Builder(lane.tape, times, frozenset(varying), synchronous, gap_us)
    for step in lane.tape.instructions:
        if isinstance(step, Stretch):
            builder.stretch(step)
        elif isinstance(step, Join):
            builder.join(step)
        elif isinstance(step, Meeting):
            builder.meet(step)
        else:
            raise StepsightError("a program with a period cannot be condensed")
    tape, priced = builder.tape()
    return Condensed(replace(lane, tape=tape), priced, builder.launch_of)


class _Builder:
    """Writes the shorter tape; every launch gets one mark, every stretch one more for its end."""

    def __init__(
        self, tape: LoweredProgram, times: Priced, varying: frozenset[int], synchronous: bool, gap_us: float
    ) -> None:
        self.old, self.times, self.varying = tape, times, varying
        self.synchronous, self.gap_us = synchronous, gap_us
        self.instructions: list[Stretch | Join | Meeting] = []
        self.stream_of: list[int] = []
        self.mark_of: list[int] = []
        self.host: list[FloatArray] = []
        self.device: list[FloatArray] = []
        self.launch_of: dict[int, int] = {}

    def stretch(self, step: Stretch) -> None:
        first = len(self.host)
        launches = self._inline(step) if self.synchronous else self._streamed(step)
        by_stream: dict[int, list[int]] = {}
        for launch in launches:
            by_stream.setdefault(self.stream_of[launch], []).append(launch)
        pairs = tuple((s, np.array(ls, dtype=np.int64)) for s, ls in by_stream.items())
        self.instructions.append(Stretch(first, len(self.host), pairs))

    def join(self, step: Join) -> None:
        if step.on_launch < 0:
            self.instructions.append(step)
        else:
            self.instructions.append(replace(step, on_launch=self.launch_of[step.on_launch]))

    def meet(self, step: Meeting) -> None:
        launch = self._launch(step.launch, step.stream, self.times.device_us[step.launch])
        self.instructions.append(replace(step, launch=launch))

    def tape(self) -> tuple[LoweredProgram, Priced]:
        # A meeting's launch has a mark of its own that no stretch passes over.
        launches = len(self.stream_of)
        nothing = np.zeros(launches, dtype=np.int64)
        tape = LoweredProgram(
            tuple(self.instructions), self.old.streams,
            np.array(self.stream_of, dtype=np.int64), np.array(self.mark_of, dtype=np.int64), nothing,
            np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64),
            frozenset(self.launch_of[k] for k in self.old.awaited), len(self.host),
            nothing + 1, np.zeros(0, dtype=np.int64),
        )  # fmt: skip
        return tape, Priced(_stacked(self.host), _stacked(self.device))

    def _streamed(self, step: Stretch) -> list[int]:
        """The host runs ahead: each stream's fixed runs become one launch each."""
        elapsed = np.cumsum(self.times.host_us[step.lo : step.hi], axis=0)
        spent = np.zeros_like(elapsed[0])
        made: list[int] = []
        for stream, launches in step.launches:
            for run in self._runs(launches):
                time = self.times.device_us[run] + self.gap_us
                rest = np.cumsum(time[::-1], axis=0)[::-1]
                ready = elapsed[self.old.launch_mark[run] - step.lo] + rest
                at = ready.max(axis=0) - rest[0]
                self.host.append(at - spent)
                spent = at
                made.append(self._launch(int(run[-1]), stream, rest[0] - self.gap_us, marked=True))
        self.host.append(elapsed[-1] - spent)
        return made

    def _inline(self, step: Stretch) -> list[int]:
        """The host runs everything itself: what is fixed is host time."""
        spent = [self.times.host_us[m] for m in range(step.lo, step.hi)]
        kept: list[tuple[int, int, int]] = []
        for stream, launches in step.launches:
            for launch in launches.tolist():
                mark = int(self.old.launch_mark[launch]) - step.lo
                if launch in self.varying or launch in self.old.awaited:
                    kept.append((mark, launch, stream))
                else:
                    spent[mark + 1] = spent[mark + 1] + self.times.device_us[launch]
        made: list[int] = []
        done = 0
        for mark, launch, stream in sorted(kept):
            self.host.append(_total(spent[done : mark + 1], self.times.host_us[step.lo]))
            made.append(self._launch(launch, stream, self.times.device_us[launch], marked=True))
            done = mark + 1
        self.host.append(_total(spent[done:], self.times.host_us[step.lo]))
        return made

    def _runs(self, launches: IntArray) -> list[IntArray]:
        """Varying launches by themselves, the fixed ones between in one run, ended by an awaited one."""
        runs: list[list[int]] = []
        is_open = False
        for launch in launches.tolist():
            if launch in self.varying:
                runs.append([launch])
                is_open = False
                continue
            if not is_open:
                runs.append([])
            runs[-1].append(launch)
            is_open = launch not in self.old.awaited
        return [np.array(run, dtype=np.int64) for run in runs]

    def _launch(self, old: int, stream: int, time: FloatArray, *, marked: bool = False) -> int:
        number = len(self.stream_of)
        self.launch_of[old] = number
        self.stream_of.append(stream)
        self.mark_of.append(len(self.host) - 1 if marked else len(self.host))
        self.device.append(time)
        return number


def _total(parts: list[FloatArray], like: FloatArray) -> FloatArray:
    total = np.zeros_like(like)
    for part in parts:
        total = total + part
    return total


def _stacked(rows: list[FloatArray]) -> FloatArray:
    if not rows:
        return np.zeros((0, 1, 1))
    return np.stack(np.broadcast_arrays(*rows))
