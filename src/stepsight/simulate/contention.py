"""Compute and communication that overlap slow each other down.

NCCL's kernels take streaming multiprocessors and memory bandwidth from the compute that
runs alongside them, and the other way round; on a CPU they compete for cores. A launch that
needs ``t`` alone and spends ``o`` under the other kind takes ``t + o·(1 − 1/slowdown)``.
Collectives of one rank that run at the same time, on streams of their own, share its link:
each moves at half its speed while another is under way. A kernel that begins on one compute stream
while one that fills the GPU runs on another gets what that one's blocks leave.
What overlaps with what depends on those very times, so the walk is repeated until
nothing moves. Ranks of one node that look up at the same time share its memory; GPUs have memories of their
own, and their platforms state a slowdown of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import numpy.typing as npt

from stepsight.constants import area
from stepsight.estimate import FloatArray, IntArray
from stepsight.hardware.spec import ContentionSpec
from stepsight.simulate.engine import Priced
from stepsight.simulate.intervals import covered_by_rank
from stepsight.simulate.lowering import Lane, LoweredProgram, Meeting
from stepsight.simulate.rendezvous import LaneTimes, Walk

_CONSTANTS = area("simulate")
FILLS_US = _CONSTANTS.number("FILLS_US")
MOST_WALKS = _CONSTANTS.whole("MOST_WALKS")
SETTLED_SHARE = _CONSTANTS.number("SETTLED_SHARE")
SETTLED_US = _CONSTANTS.number("SETTLED_US")
SHARED_LINK = _CONSTANTS.number("SHARED_LINK")

BoolArray = npt.NDArray[np.bool_]


def settle(
    lanes: Sequence[Lane], priced: Sequence[Priced], contention: ContentionSpec,
    walk: Callable[[Sequence[Priced]], Walk], computing: Sequence[BoolArray] = (),
) -> tuple[Walk, tuple[Priced, ...]]:  # fmt: skip
    """Walk, stretch what overlaps, and walk again until nothing moves; the last walk and the stretched times.

    ``computing`` says of every lane's launches which ones occupy the GPU (no copies, no collectives);
    where it is not given, none is held up by another.
    """
    result = walk(priced)
    current = tuple(priced)
    slowed = contention.compute_beside_compute > 1.0
    computing = computing if slowed else ()
    on_gpu = computing or [np.zeros(lane.tape.launches, dtype=bool) for lane in lanes]
    apart = contention.compute_under_comm <= 1.0 and contention.comm_under_compute <= 1.0
    alone = not any(len(_carriers(lane.tape)) > 1 for lane in lanes)
    in_line = all(
        len(np.unique(lane.tape.launch_stream[m])) < 2 for lane, m in zip(lanes, on_gpu, strict=True)
    )
    if apart and alone and in_line:
        return result, current
    still = 0
    for turn in range(MOST_WALKS):
        weight = 1.0 if turn < MOST_WALKS // 2 else 0.5
        stretched, moved = [], 0.0
        for lane, mask, base, now, times in zip(lanes, on_gpu, priced, current, result.lanes, strict=True):
            target = _stretched(lane.tape, base, times, contention)
            target += _held(lane.tape, mask, base, times) * (1 - 1 / contention.compute_beside_compute)
            step = weight * (target - now.device_us)
            moved = max(moved, float(np.abs(step).max(initial=0.0)))
            stretched.append(replace(now, device_us=now.device_us + step))
        if moved < SETTLED_US:
            break
        current = tuple(stretched)
        before, result = result, walk(current)
        changed = np.abs(result.makespan_us - before.makespan_us)
        still = still + 1 if (changed < SETTLED_SHARE * before.makespan_us).all() else 0
        if still == 2:
            break
    return result, current


def _meetings(tape: LoweredProgram) -> list[Meeting]:
    return [i for i in tape.instructions if isinstance(i, Meeting)]


def _carriers(tape: LoweredProgram) -> set[int]:
    """The streams that carry collectives."""
    return {meeting.stream for meeting in _meetings(tape)}


@dataclass(frozen=True, slots=True)
class Streams:
    """Of every launch: its stream, whether it is a collective, and whether that is a message between two."""

    stream: IntArray
    collective: BoolArray
    message: BoolArray

    @classmethod
    def of(cls, stream: Sequence[int] | IntArray, kind: Sequence[str]) -> Streams:
        """By the kinds of collectives; "" stands for a kernel."""
        flags = np.array([(each != "", each == "send_recv") for each in kind], dtype=bool).reshape(-1, 2)
        return cls(np.asarray(stream), flags[:, 0], flags[:, 1])


def _streams(tape: LoweredProgram) -> Streams:
    kind = [""] * tape.launches
    for meeting in _meetings(tape):
        kind[meeting.launch] = meeting.kind
    return Streams.of(tape.launch_stream, kind)


def _stretched(
    tape: LoweredProgram, base: Priced, times: LaneTimes, contention: ContentionSpec
) -> FloatArray:
    """The device times of one lane, given where everything lay in the last walk."""
    shape = times.end_us.shape
    if not times.end_us.size:
        return np.array(np.broadcast_to(base.device_us, shape))
    begin, end = (np.ascontiguousarray(a.reshape(len(a), -1).T) for a in (times.begin_us, times.end_us))
    more = slowed_us(_streams(tape), begin, end, contention)
    return np.asarray(np.broadcast_to(base.device_us, shape) + more.T.reshape(shape))


def slowed_us(on: Streams, begin: FloatArray, end: FloatArray, contention: ContentionSpec) -> FloatArray:
    """How much longer each launch takes than alone, by where all of them lay; a row is a rank."""
    more = np.zeros_like(begin)
    compute, comm = np.flatnonzero(~on.collective), np.flatnonzero(on.collective)
    if not len(comm):
        return more
    kernel, transfer = (begin[:, compute], end[:, compute]), (begin[:, comm], end[:, comm])
    more[:, compute] = covered_by_rank(*kernel, *transfer) * (1 - 1 / contention.compute_under_comm)
    more[:, comm] = covered_by_rank(*transfer, *kernel) * (1 - 1 / contention.comm_under_compute)
    # Links carry both ways at once: messages to and from neighbours do not share them.
    carrier = np.where(on.message, -1, on.stream)[comm]
    carriers = np.unique(carrier)
    for mine in (carrier == each for each in carriers if len(carriers) > 1):
        own, others = ([a[:, m] for a in transfer] for m in (mine, ~mine))
        more[:, comm[mine]] += covered_by_rank(*own, *others) * (1 - 1 / SHARED_LINK)
    return more


def _held(tape: LoweredProgram, computing: BoolArray, base: Priced, times: LaneTimes) -> FloatArray:
    """How long each kernel ran alongside one that fills the GPU and had begun on another stream before it."""
    held = np.zeros_like(times.end_us)
    stream_of = tape.launch_stream
    streams = np.unique(stream_of[computing])
    if len(streams) < 2:
        return held
    alone = np.broadcast_to(base.device_us, held.shape)
    for c, r in np.ndindex(*held.shape[1:]):
        fills = computing & (alone[:, c, r] >= FILLS_US)
        start, end = times.start_us[:, c, r], times.end_us[:, c, r]
        for stream, other in permutations(streams, 2):
            mine, theirs = fills & (stream_of == stream), fills & (stream_of == other)
            held[mine, c, r] += _under_earlier(start[mine], end[mine], start[theirs], end[theirs])
    return held


def _under_earlier(start: FloatArray, end: FloatArray, first: FloatArray, last: FloatArray) -> FloatArray:
    """Of each interval, what overlaps the one of the others (a stream's, in order) begun before it."""
    if not len(first):
        return np.zeros_like(start)
    before = np.searchsorted(first, start, side="left") - 1
    until = np.minimum(end, last[np.maximum(before, 0)])
    return np.where(before >= 0, np.maximum(until - start, 0.0), 0.0)


_PHASES = {"embedding": "lookups_forward", "embedding_backward": "lookups_backward"}


def slowdown_of(contention: ContentionSpec, family: str) -> float:
    """How many times longer a kernel of this family takes while all ranks of the node run one."""
    return float(getattr(contention, _PHASES[family])) if family in _PHASES else 1.0


def side_by_side(together_us: FloatArray, slowdown: float, ranks_per_node: int) -> FloatArray:
    """When each rank is done with its lookups; the last axis are the ranks, node after node.

    ``together_us`` is what each would take if all ranks of its node were at work all the time. They start
    together, after the exchange. With m of n at work a rank is slowed by a share (m - 1) / (n - 1) of that.
    """
    n = min(ranks_per_node, together_us.shape[-1])
    if slowdown <= 1.0 or n <= 1 or together_us.shape[-1] % n:
        return together_us
    alone = (together_us / slowdown).reshape(*together_us.shape[:-1], -1, n)
    order = np.argsort(alone, axis=-1)
    pieces = np.diff(np.take_along_axis(alone, order, axis=-1), axis=-1, prepend=0.0)
    at_work = np.arange(n, 0, -1)
    done = np.cumsum(pieces * (1 + (slowdown - 1) * (at_work - 1) / (n - 1)), axis=-1)
    result = np.empty_like(done)
    np.put_along_axis(result, order, done, axis=-1)
    return result.reshape(together_us.shape)
