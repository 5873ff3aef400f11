"""Notes on a trace: missing sizes, unexplained delays."""

from __future__ import annotations

from stepsight.program.job import Sizing
from stepsight.trace.constants import MUCH_CUT_OFF, MUCH_DELAY, MUCH_UNSIZED
from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.step.job import groups_of, rank_program, unmatched
from stepsight.trace.step.program import StepProgram
from stepsight.trace.step.run import TraceRun, measured_step_us
from stepsight.trace.step.steps import NO_MARKS


def caveats(run: TraceRun, step: int) -> list[str]:
    """Notes on one step of a run, for whoever reads its prediction."""
    programs = {r.rank: rank_program(run, r, step) for r in run.ranks}
    measured_us = measured_step_us(run)
    notes = []
    counted, kept = (max(shares) for shares in zip(*map(_unrecorded, programs.values()), strict=True))
    if counted + kept > MUCH_UNSIZED:
        notes.append(
            f"{100 * (counted + kept):.0f} % of the GPU time has no recorded sizes (record with"
            f" record_shapes=True): {100 * counted:.0f} % is counted by launch grids,"
            f" {100 * kept:.0f} % keeps the trace's times, which no model predicts"
        )
    worst = max(programs, key=lambda rank: programs[rank].unexplained_us)
    late_us = programs[worst].unexplained_us
    if late_us > MUCH_DELAY * measured_us:
        notes.append(
            f"kernels of rank {worst} began {late_us / 1e3:.1f} ms late in all with the GPU idle and nothing"
            " recorded to wait for, as where nodes of a CUDA graph were not recorded: these delays are kept"
        )
    apart = unmatched(programs, groups_of(run, programs)) if len(programs) > 1 else {}
    if apart:
        ranks = sorted({r for members in apart.values() for r in members})
        notes.append(
            f"the collectives of ranks {ranks[0]} to {ranks[-1]} do not match each other; they keep the"
            " trace's times, waiting included"
        )
    return notes


def cut_off(run: TraceRun) -> list[str]:
    """A single step whose recording began in its midst: kernels whose launches lie before it."""
    if run.steps > 1 or run.ranks[0].steps[0].how != NO_MARKS:
        return []
    shares = [_orphaned_share(r.linked) for r in run.ranks]
    if max(shares) <= MUCH_CUT_OFF:
        return []
    return [
        f"{100 * max(shares):.0f} % of the GPU time was launched before the recording began:"
        " the step shown is a part of the real one"
    ]


def _orphaned_share(linked: LinkedTrace) -> float:
    total = sum(e.dur for e in linked.trace.gpu)
    return sum(e.dur for e in linked.earlier_work) / total if total else 0.0


def _unrecorded(program: StepProgram) -> tuple[float, float]:
    """Shares of the GPU time whose sizes launch grids count, and whose sizes nothing states."""
    total = counted = kept = 0.0
    for traced in program.ops:
        for i, seen in enumerate(traced.seen):
            time_us = seen.measured_us or 0.0
            total += time_us
            if seen.opaque:
                kept += time_us
            elif i < len(traced.op.kernels) and traced.op.kernels[i].sizing is Sizing.COUNTED:
                counted += time_us
    return (counted / total, kept / total) if total else (0.0, 0.0)
