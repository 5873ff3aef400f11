"""Compute and communication that overlap slow each other down.

NCCL's kernels take streaming multiprocessors and memory bandwidth from the compute that
runs beside them, and the other way round; on a CPU they compete for cores. A launch that
needs ``t`` alone and spends ``o`` under the other kind takes ``t + o·(1 − 1/slowdown)``.
Collectives of one rank that run at the same time, on streams of their own, share its link:
each moves at half its speed while another is under way.
What overlaps with what depends on those very times, so the walk is repeated until
nothing moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.platform.spec import ContentionSpec
from stepsight.simulate.engine import LaneTimes, Priced, Walk
from stepsight.simulate.intervals import covered, union
from stepsight.simulate.tape import Lane, Meeting, Tape

SETTLED_US = 0.05
"""No launch moved by more than this: the walk has settled."""
MOST_WALKS = 12
"""Overlap can flip back and forth at a knife's edge; the mean of the flips is taken then."""
SHARED_LINK = 2.0
"""Two transfers on one link: each gets half of it."""


def settle(
    lanes: Sequence[Lane], priced: Sequence[Priced], contention: ContentionSpec,
    walk: Callable[[Sequence[Priced]], Walk],
) -> tuple[Walk, tuple[Priced, ...]]:  # fmt: skip
    """Walk, stretch what overlaps, and walk again until nothing moves."""
    result = walk(priced)
    current = tuple(priced)
    apart = contention.compute_under_comm <= 1.0 and contention.comm_under_compute <= 1.0
    if apart and not any(len(_carriers(lane.tape)) > 1 for lane in lanes):
        return result, current
    for turn in range(MOST_WALKS):
        weight = 1.0 if turn < MOST_WALKS // 2 else 0.5
        stretched, moved = [], 0.0
        for lane, base, now, times in zip(lanes, priced, current, result.lanes, strict=True):
            target = _stretched(lane.tape, base, times, contention)
            step = weight * (target - now.device_us)
            moved = max(moved, float(np.abs(step).max(initial=0.0)))
            stretched.append(Priced(now.host_us, now.device_us + step))
        if moved < SETTLED_US:
            break
        current = tuple(stretched)
        result = walk(current)
    return result, current


def _meetings(tape: Tape) -> list[Meeting]:
    return [i for i in tape.instructions if isinstance(i, Meeting)]


def _carriers(tape: Tape) -> set[int]:
    """The streams that carry collectives."""
    return {meeting.stream for meeting in _meetings(tape)}


def _stretched(tape: Tape, base: Priced, times: LaneTimes, contention: ContentionSpec) -> FloatArray:
    """The device times of one lane, given where everything lay in the last walk."""
    meeting = np.zeros(tape.launches, dtype=bool)
    meeting[[m.launch for m in _meetings(tape)]] = True
    carriers = sorted(_carriers(tape))
    shape = times.end_us.shape
    device: FloatArray = np.broadcast_to(base.device_us, shape).copy()
    compute, comm = np.flatnonzero(~meeting), np.flatnonzero(meeting)
    if not len(comm):
        return device
    for c in range(shape[1]):
        for r in range(shape[2]):
            kernel = times.begin_us[compute, c, r], times.end_us[compute, c, r]
            transfer = times.begin_us[comm, c, r], times.end_us[comm, c, r]
            under_comm = covered(*kernel, *union(*transfer))
            under_compute = covered(*transfer, *union(*kernel))
            device[compute, c, r] += under_comm * (1 - 1 / contention.compute_under_comm)
            device[comm, c, r] += under_compute * (1 - 1 / contention.comm_under_compute)
            for stream in carriers if len(carriers) > 1 else ():
                mine = tape.launch_stream[comm] == stream
                others = union(transfer[0][~mine], transfer[1][~mine])
                shared = covered(transfer[0][mine], transfer[1][mine], *others)
                device[comm[mine], c, r] += shared * (1 - 1 / SHARED_LINK)
    return device
