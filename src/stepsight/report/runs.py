"""What runs teach of a machine, why one is slow, what to change, and a whole run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepsight.prediction.advice import Advice, Advised
from stepsight.prediction.answer import INTERVAL_SIGMAS
from stepsight.prediction.diagnosis import SLOW, USUAL, Diagnosis
from stepsight.prediction.display import change, look, share, size, time
from stepsight.prediction.learn.lesson import Lesson, RunResult, Validation
from stepsight.prediction.whole_run import WholeRun
from stepsight.report.pieces import Listing, Report
from stepsight.terminal import counted


def lesson_report(lesson: Lesson) -> Report:
    """What runs taught about a platform."""
    memory, sigmas = lesson.learned.memory, INTERVAL_SIGMAS
    factors = [
        (word, f"{f:.2f}", f"{f / math.exp(sigmas * s):.2f}–{f * math.exp(sigmas * s):.2f}")
        for word, f, s in lesson.moved
    ]
    title = "takes this many times as long as predicted without runs"
    below = [f"left out: {one}" for one in lesson.evidence.left_out]
    if abs(math.log(memory)) > 0.01:
        below.append(f"memory: {memory:.2f} times the predicted peak")
    return Report(
        f"{counted(lesson.evidence.runs, 'run')} on {lesson.based_on}", (),
        (
            Listing(title, ("part", "factor", "90 % interval"), factors),
            _runs(lesson.rows, "with these factors", below),
        ),
    )  # fmt: skip


def validation_report(found: Validation) -> Report:
    """Every run predicted with and without the others."""
    sentence = (
        f"mean error {share(found.mape_before)} without learning, {share(found.mape_after)} with the"
        f" others learned; {share(found.inside)} inside the 90 % interval"
    )
    points = [(str(point.runs), share(point.mape), share(point.inside)) for point in found.curve]
    titles = ("runs learned from", "mean error", "inside the interval")
    curve = Listing("mean error of the other runs", titles, points)
    return Report(
        f"{counted(len(found.rows), 'run')} on {found.platform}", (sentence,),
        (_runs(found.rows, "others learned"), curve),
    )  # fmt: skip


def _runs(rows: Sequence[RunResult], after: str, below: Sequence[str] = ()) -> Listing:
    """Runs with and without learning."""
    titles = ("run", "measured", "without learning", after, "90 % interval")
    lines = [
        (
            row.name + (" (left out)" if row.left_out else ""), time(row.measured_us),
            f"{time(row.before_us)} ({change(row.error_before)})",
            f"{time(row.after_us)} ({change(row.error_after)})", f"{time(row.low_us)} to {time(row.high_us)}",
        )
        for row in rows
    ]  # fmt: skip
    return Listing("the runs", titles, lines, below=below)


def diagnosis_report(found: Diagnosis) -> Report:
    """Whether a step is slow, and why it may be."""
    p = found.prediction
    sentence = (
        f"measured {time(found.measured_us)} per step, expected {time(p.step_time_us)} (90 % interval"
        f" {time(p.low_us)} to {time(p.high_us)}): {found.verdict},"
        f" {found.measured_us / p.step_time_us:.2f} times the prediction, percentile"
        f" {100 * found.percentile:.1f}"
    )
    usual = "no fault: the difference is within what the prediction does not know"
    longer = [(look(name).word, f"+{time(us)}") for name, us in found.longer]
    return Report(
        f"{p.workload or 'step'} on {p.platform}",
        (sentence, *found.notes, *([usual] if found.verdict == USUAL else [])),
        (
            *([_suspects(found)] if found.verdict == SLOW else []),
            Listing("longer than predicted in the trace", ("part", "longer by"), longer),
        ),
    )


def _suspects(found: Diagnosis) -> Listing:
    rows = [
        (str(i), one.name, share(one.probability), time(one.step_us), one.change)
        for i, one in enumerate(found.suspects, start=1)
    ]
    below = [f"to check {one.name}: {one.check}" for one in found.suspects[:2]]
    apart = found.tell_apart
    if apart is not None:
        line = " ".join(f"--set {a}" for a in apart.assignments)
        first, second = found.suspects[:2]
        below.append(
            f"to distinguish them, measure the job with {line}: {time(apart.usual_us)} as it should be,"
            f" {time(apart.steps_us[0])} with {first.name}, {time(apart.steps_us[1])} with {second.name}"
        )
    words = ("what may be wrong", "as an option")
    titles = ("#", words[0], "likely", "step it would give", words[1])
    return Listing("suspects, the likeliest first", titles, rows, words, below=below)


def whole_run_listing(found: WholeRun) -> Listing:
    """Days, GPU-hours, cost, energy and goodput of a run."""
    title = f"whole run: {counted(found.steps, 'step')} on {counted(found.gpus, 'GPU')}"
    words = found.failure_words()
    columns = ("", "expected", "90 % interval")
    return Listing(title, columns, found.lines(), below=[words] if words else [])


def advice_report(found: Advised, most: int | None = None) -> Report:
    """What to change, what each change gains and needs; the first ``most`` changes."""
    p = found.prediction
    memory = f", {size(p.memory.total_bytes)} of {size(p.memory.usable_bytes)}" if p.memory else ""
    lead = f"{found.tried} changes simulated; those that gain, the largest gain first"
    nothing = "nothing that was tried gains"
    if not found.fits:
        lead = "does not fit; changes that make it fit, those that lose the least time first"
        nothing = "nothing that was tried makes it fit"
    return Report(
        f"{p.workload or 'step'} on {p.platform}: {time(p.step_time_us)} per step{memory}",
        (lead, *found.notes, *([] if found.changes else [nothing])),
        (_changes(found, found.changes[:most]),),
    )


def _changes(found: Advised, shown: Sequence[Advice]) -> Listing:
    rows = [
        (str(i), one.name, change(one.gain, 1) + ("" if one.beyond_interval else " ≈"), time(one.step_us),
         size(one.memory_bytes) if one.memory_bytes is not None else "",
         size(one.saved_bytes) if one.saved_bytes and one.saved_bytes > 0 else "")
        for i, one in enumerate(shown, start=1)
    ]  # fmt: skip
    below = [
        f"{i}  " + "; ".join(text for text in (one.set_line, one.code, one.done, one.alters) if text)
        for i, one in enumerate(shown, start=1)
    ]
    if any(not one.beyond_interval for one in shown):
        below.append("≈ smaller than the interval of the prediction: measure it")
    if len(shown) < len(found.changes):
        below.append(f"… {len(found.changes) - len(shown)} more with --all")
    titles = ("#", "change", "work per second", "step", "memory", "saves")
    return Listing("changes", titles, rows, ("change",), below=below)
