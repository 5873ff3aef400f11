"""The walk: every clock of every rank and every configuration, in one pass.

The step is a static graph of operators, launches and joins on FIFO streams, so its time
is a longest path. On one stream, launch j ends at ``max(end of j-1, ready of j) + time``;
unrolled, that is a running sum plus a running maximum, which numpy does for a whole
stretch of launches at once. Joins and collectives in between take a maximum of clocks.
Clocks have the shape (configurations, ranks of the lane).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray, IntArray
from stepsight.program.job import Group
from stepsight.simulate.lowering import HOST_CLOCK, Boundary, Join, Lane, LoweredProgram, Stretch
from stepsight.simulate.narrow import walk_narrow
from stepsight.simulate.periods import continued
from stepsight.simulate.rendezvous import Arrival, Clocks, LaneTimes, Rendezvous, Steps, Walk

WIDE = 128
"""Clocks (configurations × ranks) from which on a loop over launches beats a scan along them:
measured on two x86 cores with numpy 2, where the two took about as long at 128."""


@dataclass(frozen=True, slots=True)
class Priced:
    """The times of one lane, shaped to broadcast against (…, configurations, ranks).

    ``host_us[m]`` is what the host spends before mark m; ``device_us[k]`` is how long
    launch k runs (for a collective: from the moment the last rank is there). ``late_us[k]``,
    where there is any, is how long after its ranks others come to collective k that the job does
    not hold. An axis of length one serves all configurations or all ranks.
    """

    host_us: FloatArray
    device_us: FloatArray
    late_us: FloatArray | None = None


def walk(
    lanes: Sequence[Lane],
    priced: Sequence[Priced],
    groups: Mapping[str, tuple[Group, ...]],
    *,
    start: Sequence[Clocks] = (),
    launch_us: float = 0.0,
    gap_us: float = 0.0,
    synchronous: bool = False,
    configurations: int = 1,
    keep: bool = False,
) -> Walk:
    """Walk all ranks together, from time zero or from where an earlier step left the clocks.

    ``launch_us`` passes between a launch and its kernel's start on an idle stream, ``gap_us``
    between kernels on a busy one. ``keep`` records every start and end, not only the finish.
    """
    ranks = sum(len(lane.ranks) for lane in lanes)
    begin = list(start) or [clocks_at(lane, np.zeros(ranks), configurations) for lane in lanes]
    ended = list(begin)
    kept = tuple(_blank(lane.tape, configurations, len(lane.ranks)) for lane in lanes) if keep else ()
    states: tuple[list[FloatArray], ...] = tuple([] for _ in lanes)
    rendezvous = Rendezvous(lanes, groups, (configurations, ranks))
    delays = launch_us, gap_us
    alone = [rendezvous.alone(lane) for lane in lanes]
    if configurations == 1 and not synchronous and all(len(lane.ranks) == 1 for lane in lanes):
        times_of = [(p.host_us, p.device_us, p.late_us) for p in priced]
        found = walk_narrow(lanes, times_of, groups, begin, alone, delays)
        if found is not None:
            return found
    into: list[LaneTimes | None] = list(kept) if keep else [None] * len(lanes)
    steps = [
        _steps(lane.tape, times, begin[i], delays, synchronous, into[i], states[i], alone[i])
        for i, (lane, times) in enumerate(zip(lanes, priced, strict=True))
    ]
    finish = np.zeros((configurations, ranks))
    for index, clocks in rendezvous.run(steps):
        ended[index] = clocks
        finish[:, lanes[index].ranks] = np.maximum.reduce([clocks.host_us, *clocks.stream_us])
    return Walk(finish, tuple(ended), kept, tuple(tuple(seen) for seen in states))


def clocks_at(lane: Lane, start_us: FloatArray, configurations: int = 1) -> Clocks:
    """All clocks of a lane at its ranks' start; ``start_us`` is by rank of the job."""
    host: FloatArray = np.repeat(start_us[None, lane.ranks], configurations, axis=0)
    return Clocks(host, tuple(host.copy() for _ in lane.tape.streams))


def _blank(tape: LoweredProgram, configurations: int, ranks: int) -> LaneTimes:
    shape = (configurations, ranks)
    starts = np.zeros((tape.launches, *shape))
    return LaneTimes(np.zeros((tape.marks, *shape)), starts, starts.copy(), starts.copy())


def _steps(
    tape: LoweredProgram, priced: Priced, start: Clocks, delays_us: tuple[float, float], synchronous: bool,
    kept: LaneTimes | None, states: list[FloatArray], alone: frozenset[str],
) -> Steps:  # fmt: skip
    """Walk one lane, stopping at each meeting until the other lanes' arrivals are known.

    In the groups ``alone`` every rank meets only ranks like itself, who arrive when it does.
    """
    host, clocks = start.host_us, list(start.stream_us)
    ends: dict[int, FloatArray] = {}
    stretch_of = _run_inline if synchronous else _run_async
    for step in tape.instructions:
        if isinstance(step, Stretch):
            host = stretch_of(tape, step, priced, host, clocks, ends, delays_us, kept)
        elif isinstance(step, Join):
            other = ends[step.on_launch] if step.on_launch >= 0 else clocks[step.on_stream]
            if step.waiter == HOST_CLOCK:
                host = np.maximum(host, other)
            else:
                clocks[step.waiter] = np.maximum(clocks[step.waiter], other)
        elif isinstance(step, Boundary):
            states.append(np.stack([host, *clocks, *(ends[launch] for launch in step.live)]))
            if step.skipped > 0:
                state = continued(states, step.skipped)
                host, clocks = state[0], list(state[1 : 1 + len(clocks)])
                ends.update(zip(step.live, state[1 + len(clocks) :], strict=True))
        else:
            ready = np.maximum(host + delays_us[0], clocks[step.stream])
            for stream in step.after:
                ready = np.maximum(ready, clocks[stream])
            late = 0.0 if priced.late_us is None else priced.late_us[step.launch]
            begin, end = ready + late, ready + late + priced.device_us[step.launch]
            if step.group not in alone:
                begin, end = yield Arrival(step, begin, priced.device_us[step.launch])
            clocks[step.stream] = end
            if step.launch in tape.awaited:
                ends[step.launch] = end
            if kept:
                kept.start_us[step.launch], kept.begin_us[step.launch] = ready, begin
                kept.end_us[step.launch] = end
    return Clocks(host, tuple(clocks))


def _run_async(
    tape: LoweredProgram, step: Stretch, priced: Priced, host: FloatArray, clocks: list[FloatArray],
    ends: dict[int, FloatArray], delays_us: tuple[float, float], kept: LaneTimes | None,
) -> FloatArray:  # fmt: skip
    """The host runs ahead; each stream works off its launches in order."""
    launch_us, gap_us = delays_us
    elapsed = np.cumsum(priced.host_us[step.lo : step.hi], axis=0)
    for stream, launches in step.launches:
        issued = elapsed[tape.launch_mark[launches] - step.lo] + launch_us
        time = priced.device_us[launches]
        in_order = _row_by_row if host.size >= WIDE else _all_at_once
        keep = kept is not None or not tape.awaited.isdisjoint(launches.tolist())
        end, clocks[stream] = in_order(host, issued, time + gap_us, clocks[stream], keep)
        if keep:
            end -= gap_us
            _keep(tape, launches, end, time, ends, kept)
    if kept:
        kept.mark_us[step.lo : step.hi] = host + elapsed
    return np.asarray(host + elapsed[-1], dtype=np.float64)


def _all_at_once(
    host: FloatArray, issued: FloatArray, time: FloatArray, clock: FloatArray, keep: bool
) -> tuple[FloatArray, FloatArray]:
    """The ends of launches in stream order, and the stream's clock after them, by scans."""
    total = np.cumsum(time, axis=0)
    end = (host + issued) - (total - time)
    np.maximum.accumulate(end, axis=0, out=end)
    np.maximum(end, clock, out=end)
    end += total
    return end, end[-1].copy()


def _row_by_row(
    host: FloatArray, issued: FloatArray, time: FloatArray, clock: FloatArray, keep: bool
) -> tuple[FloatArray, FloatArray]:
    """The same, launch by launch: for wide rows numpy's scans are slower than its sums."""
    now, ready = clock.copy(), np.empty_like(clock)
    end = np.empty((len(issued) if keep else 0, *clock.shape))
    for k in range(len(issued)):
        np.add(host, issued[k], out=ready)
        np.maximum(now, ready, out=now)
        now += time[k]
        if keep:
            end[k] = now
    return end, now


def _run_inline(
    tape: LoweredProgram, step: Stretch, priced: Priced, host: FloatArray, clocks: list[FloatArray],
    ends: dict[int, FloatArray], delays_us: tuple[float, float], kept: LaneTimes | None,
) -> FloatArray:  # fmt: skip
    """The host executes every kernel itself before it goes on (a CPU)."""
    shape = np.broadcast_shapes(priced.host_us.shape[1:], priced.device_us.shape[1:])
    spent = np.broadcast_to(priced.host_us[step.lo : step.hi], (step.hi - step.lo, *shape)).copy()
    for _, launches in step.launches:
        # A launch's mark is never the last of its stretch: its operator's end follows.
        spent[tape.launch_mark[launches] + 1 - step.lo] += priced.device_us[launches]
    elapsed = np.cumsum(spent, axis=0)
    for stream, launches in step.launches:
        time = priced.device_us[launches]
        end = host + elapsed[tape.launch_mark[launches] - step.lo] + time
        clocks[stream] = np.maximum(clocks[stream], end[-1])
        _keep(tape, launches, end, time, ends, kept)
    if kept:
        kept.mark_us[step.lo : step.hi] = host + elapsed
    return np.asarray(host + elapsed[-1], dtype=np.float64)


def _keep(
    tape: LoweredProgram, launches: IntArray, end: FloatArray, time: FloatArray, ends: dict[int, FloatArray],
    kept: LaneTimes | None,
) -> None:  # fmt: skip
    if tape.awaited:
        for position, launch in enumerate(launches.tolist()):
            if launch in tape.awaited:
                ends[launch] = end[position]
    if kept:
        kept.end_us[launches] = end
        kept.start_us[launches] = kept.begin_us[launches] = end - time
