"""What a prediction from a trace must say of the trace: hidden sizes, odd delays, the profiler's own work."""

from __future__ import annotations

from stepsight.trace.constants import MUCH_CUT_OFF, MUCH_DELAY, MUCH_RECORDING, MUCH_UNSIZED
from stepsight.trace.linking.launches import NO_OP
from stepsight.trace.linking.link import LinkedTrace, is_collective_kernel
from stepsight.trace.sizing.calls import launching_op
from stepsight.trace.step.host_times import recording_gaps
from stepsight.trace.step.job import groups_of, rank_program, unmatched
from stepsight.trace.step.program import StepProgram
from stepsight.trace.step.run import TraceRun, measured_step_us
from stepsight.trace.step.steps import NO_MARKS


def caveats(run: TraceRun, step: int) -> list[str]:
    """Notes on one step of a run, for whoever reads its prediction."""
    programs = {r.rank: rank_program(run, r, step) for r in run.ranks}
    linked = {r.rank: r.linked for r in run.ranks}
    guessed = max(_guessed_share(linked[rank], program) for rank, program in programs.items())
    measured_us = measured_step_us(run)
    notes = []
    if guessed > MUCH_UNSIZED:
        how = "theirs are read off launch grids and the kernels beside them"
        if not any(event.grid() for one in linked.values() for event in one.trace.gpu):
            how = "without launch grids either, kernels count as they took and collectives as small"
        notes.append(
            f"kernels of {100 * guessed:.0f} % of the GPU time have no recorded sizes: {how}"
            " (record with record_shapes=True)"
        )
    kept = max(opaque_share(program) for program in programs.values())
    if kept > MUCH_UNSIZED:
        notes.append(
            f"{100 * kept:.0f} % of the GPU time is kernels of unknown size: they keep the trace's times;"
            " models time the rest"
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
    recording_us = {rank: sum(recording_gaps(linked[rank], p).values()) for rank, p in programs.items()}
    slowed = max(recording_us, key=lambda rank: recording_us[rank])
    if recording_us[slowed] > MUCH_RECORDING * measured_us:
        notes.append(
            f"the profiler itself held rank {slowed} up for {recording_us[slowed] / 1e3:.1f} ms of the"
            f" {measured_us / 1e3:.1f} ms step, trying to record arguments of Triton launches that are"
            " neither tensor nor number; a step not profiled so does not take it (record without shapes)"
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


def opaque_share(program: StepProgram) -> float:
    """Share of the kernels' time that the trace's own times stand for."""
    pairs = [pair for t in program.ops for pair in zip(t.op.kernels, t.seen, strict=False)]
    total = sum(seen.measured_us or 0.0 for _, seen in pairs)
    return sum(seen.measured_us or 0.0 for _, seen in pairs if seen.opaque) / total if total else 0.0


def _guessed_share(linked: LinkedTrace, program: StepProgram) -> float:
    """Share of the kernels' time whose operator has no recorded sizes; copies state theirs."""
    total = guessed = 0.0
    for traced in program.ops:
        for launch in traced.launches:
            if is_collective_kernel(launch.gpu[0]):
                continue
            op = launching_op(linked, launch)
            known = op != NO_OP and bool(linked.ops[op].shapes())
            for event in launch.gpu:
                total += event.dur
                guessed += 0.0 if known or event.name.startswith(("Memcpy", "Memset")) else event.dur
    return guessed / total if total else 0.0
