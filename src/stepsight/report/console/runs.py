"""What runs teach of a machine, why one is slow and what to change, in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from stepsight.prediction.advise.advice import Advice, Advised
from stepsight.prediction.diagnose.diagnosis import SLOW, USUAL, Diagnosis
from stepsight.prediction.display import change, look, share, size, time
from stepsight.prediction.learn.lesson import Lesson, RunResult, Validation
from stepsight.prediction.whole_run import WholeRun
from stepsight.terminal import listing


def show_lesson(lesson: Lesson, console: Console) -> None:
    """What runs taught about a platform."""
    learned, evidence = lesson.learned, lesson.evidence
    console.print(Text(f"{evidence.runs} runs on {lesson.based_on}", style="bold"))
    title = "takes this many times as long as predicted without runs"
    console.print(listing(("part", "factor", "90 % interval"), factor_lines(lesson), title=title))
    console.print(listing(*run_lines(lesson.rows, "with these factors")))
    for one in evidence.left_out:
        console.print(Text(f"left out: {one}"))
    if abs(math.log(learned.memory)) > 0.01:
        console.print(Text(f"memory: {learned.memory:.2f} times the predicted peak"))


def show_validation(found: Validation, console: Console) -> None:
    """Every run predicted with and without the others."""
    console.print(listing(*run_lines(found.rows, "others learned")))
    console.print(
        Text(
            f"mean error {share(found.mape_before)} without learning, {share(found.mape_after)} with the"
            f" others learned; {share(found.inside)} inside the 90 % interval",
            style="bold",
        )
    )
    console.print(Text("mean error of the other runs"))
    points = [(str(point.runs), share(point.mape), share(point.inside)) for point in found.curve]
    console.print(listing(("runs learned from", "mean error", "inside the interval"), points))


def factor_lines(lesson: Lesson) -> list[tuple[str, str, str]]:
    """Every part that the runs move, its factor and the 90 % interval of that."""
    return [
        (word, f"{f:.2f}", f"{f / math.exp(1.645 * s):.2f}–{f * math.exp(1.645 * s):.2f}")
        for word, f, s in lesson.moved
    ]


def run_lines(rows: Sequence[RunResult], after: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The titles and rows of a table of runs, with and without learning."""
    return ("run", "measured", "without learning", after, "90 % interval"), [
        (
            row.name + (" (left out)" if row.left_out else ""), time(row.measured_us),
            f"{time(row.before_us)} ({change(row.error_before)})",
            f"{time(row.after_us)} ({change(row.error_after)})", f"{time(row.low_us)} to {time(row.high_us)}",
        )
        for row in rows
    ]  # fmt: skip


def diagnosis_sentence(found: Diagnosis) -> str:
    """The verdict in one sentence."""
    p = found.prediction
    ratio = found.measured_us / p.step_us
    return (
        f"measured {time(found.measured_us)} per step, expected {time(p.step_us)} (90 % interval"
        f" {time(p.low_us)} to {time(p.high_us)}): {found.verdict}, {ratio:.2f} times the prediction,"
        f" percentile {100 * found.percentile:.1f}"
    )


def show_diagnosis(found: Diagnosis, console: Console) -> None:
    """Whether a step is slow, and why it may be."""
    p = found.prediction
    console.print(Text(f"{p.workload or 'step'} on {p.platform}"))
    console.print(Text(diagnosis_sentence(found), style="bold"))
    for note in found.notes:
        console.print(Text(note))
    if found.verdict == USUAL:
        console.print(Text("no fault: the difference is within what the prediction does not know"))
    if found.verdict == SLOW:
        _show_suspects(found, console)
    for name, us in found.longer:
        console.print(Text(f"longer than predicted in the trace: {look(name).word} +{time(us)}"))


def _show_suspects(found: Diagnosis, console: Console) -> None:
    rows = [
        (str(i), one.name, share(one.probability), time(one.step_us), one.change)
        for i, one in enumerate(found.suspects, start=1)
    ]
    words = ("what may be wrong", "as an option")
    titles = ("", words[0], "likely", "step it would give", words[1])
    console.print(listing(titles, rows, title="suspects, the likeliest first", left=words))
    for one in found.suspects[:2]:
        console.print(Text(f"to check {one.name}: {one.check}"))
    apart = found.tell_apart
    if apart is not None:
        line = " ".join(f"--set {a}" for a in apart.assignments)
        first, second = found.suspects[:2]
        console.print(
            Text(
                f"to distinguish them, measure the job with {line}: {time(apart.usual_us)} as it should be,"
                f" {time(apart.steps_us[0])} with {first.name}, {time(apart.steps_us[1])} with {second.name}"
            )
        )


def show_whole_run(found: WholeRun, console: Console) -> None:
    """Days, GPU-hours, cost, energy and goodput of a run."""
    console.print(Text(f"whole run: {found.steps:,} steps on {found.gpus:,} GPUs"))
    console.print(listing(("", " ", "90 % interval"), found.lines()))
    if words := found.failure_words():
        console.print(Text(words))


def advice_headline(found: Advised) -> str:
    """The job as it is."""
    p = found.prediction
    memory = f", {size(p.memory.total_bytes)} of {size(p.memory.usable_bytes)}" if p.memory else ""
    return f"{p.workload or 'step'} on {p.platform}: {time(p.step_us)} per step{memory}"


def advice_lead(found: Advised) -> str:
    """How to read the list."""
    if not found.fits:
        return "does not fit; changes that make it fit, those that lose the least time first"
    return f"{found.tried} changes simulated; those that gain, the largest gain first"


def show_advice(found: Advised, console: Console, *, most: int | None = 10) -> None:
    """Print the changes."""
    console.print(Text(advice_headline(found), style="bold"))
    console.print(Text(advice_lead(found)))
    for note in found.notes:
        console.print(Text(note))
    if not found.changes:
        console.print(
            Text("nothing that was tried gains" if found.fits else "nothing that was tried makes it fit")
        )
        return
    shown = found.changes if most is None else found.changes[:most]
    rows = [
        (str(i), one.name, change(one.gain, 1) + ("" if one.beyond_interval else " ≈"), time(one.step_us),
         size(one.memory_bytes) if one.memory_bytes is not None else "",
         size(one.saved_bytes) if one.saved_bytes and one.saved_bytes > 0 else "")
        for i, one in enumerate(shown, start=1)
    ]  # fmt: skip
    titles = ("", "change", "work per second", "step", "memory", "saves")
    console.print(listing(titles, rows, left=("change",)))
    for i, one in enumerate(shown, start=1):
        console.print(Text(f"{i}  {how(one)}"))
    if any(not one.beyond_interval for one in shown):
        console.print(Text("≈ smaller than the interval of the prediction: measure it"))
    if len(shown) < len(found.changes):
        console.print(Text(f"… {len(found.changes) - len(shown)} more with --all"))


def how(one: Advice) -> str:
    """The option that simulates a change, the code that makes it, what was rewritten and what it alters."""
    return "; ".join(text for text in (one.set_line, one.code, one.done, one.alters) if text)
