"""What runs teach of a machine, why one is slow and what to change, in the terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepsight.prediction.advise.advice import Advice, Advised
from stepsight.prediction.diagnose.diagnosis import SLOW, USUAL, Diagnosis
from stepsight.prediction.display import change, look, share, size, time
from stepsight.prediction.learn.lesson import Lesson, RunResult, Validation
from stepsight.prediction.whole_run import WholeRun


def show_lesson(lesson: Lesson, console: Console) -> None:
    """What runs taught about a platform."""
    learned, evidence = lesson.learned, lesson.evidence
    console.print(Text(f"{evidence.runs} runs on {lesson.based_on}", style="bold"))
    table = Table(
        title="takes this many times as long as predicted without runs", title_justify="left", box=None
    )
    for name in ("part", "factor", "90 % interval"):
        table.add_column(name, justify="left" if name == "part" else "right", no_wrap=True)
    for word, factor, spread in lesson.moved:
        reach = math.exp(1.645 * spread)
        table.add_row(word, f"{factor:.2f}", f"{factor / reach:.2f}–{factor * reach:.2f}")
    console.print(table)
    console.print(_rows(lesson.rows, "with these factors"))
    for one in evidence.left_out:
        console.print(Text(f"left out: {one}"))
    if abs(math.log(learned.memory)) > 0.01:
        console.print(Text(f"memory: {learned.memory:.2f} times the predicted peak"))


def show_validation(found: Validation, console: Console) -> None:
    """Every run predicted with and without the others."""
    console.print(_rows(found.rows, "others learned"))
    console.print(
        Text(
            f"mean error {share(found.mape_before)} without learning, {share(found.mape_after)} with the"
            f" others learned; {share(found.inside)} inside the 90 % interval",
            style="bold",
        )
    )
    console.print(Text("mean error of the other runs"))
    table = Table(box=None)
    for name in ("runs learned from", "mean error", "inside the interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for point in found.curve:
        table.add_row(str(point.runs), share(point.mape), share(point.inside))
    console.print(table)


def _rows(rows: tuple[RunResult, ...], after: str) -> Table:
    table = Table(box=None)
    for name in ("run", "measured", "without learning", after, "90 % interval"):
        table.add_column(name, justify="left" if name == "run" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name + (" (left out)" if row.left_out else ""),
            time(row.measured_us),
            f"{time(row.before_us)} ({change(row.error_before)})",
            f"{time(row.after_us)} ({change(row.error_after)})",
            f"{time(row.low_us)} to {time(row.high_us)}",
        )
    return table


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
    table = Table(title="suspects, the likeliest first", title_justify="left", box=None)
    for name in ("", "what may be wrong", "likely", "step it would give", "as an option"):
        table.add_column(
            name, justify="right" if name in ("", "likely", "step it would give") else "left", no_wrap=True
        )
    for i, one in enumerate(found.suspects, start=1):
        table.add_row(str(i), one.name, share(one.probability), time(one.step_us), one.change)
    console.print(table)
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
    table = Table(box=None)
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("90 % interval", justify="right", no_wrap=True)
    for line in found.lines():
        table.add_row(*line)
    console.print(table)
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
    table = Table(box=None)
    for name in ("", "change", "work per second", "step", "memory", "saves"):
        table.add_column(name, justify="left" if name == "change" else "right", no_wrap=True)
    shown = found.changes if most is None else found.changes[:most]
    for i, one in enumerate(shown, start=1):
        mark = "" if one.beyond_interval else " ≈"
        memory = size(one.memory_bytes) if one.memory_bytes is not None else ""
        table.add_row(str(i), one.name, change(one.gain, 1) + mark, time(one.step_us), memory, _saved(one))
    console.print(table)
    for i, one in enumerate(shown, start=1):
        console.print(Text(f"{i}  {how(one)}"))
    if any(not one.beyond_interval for one in shown):
        console.print(Text("≈ smaller than the interval of the prediction: measure it"))
    if len(shown) < len(found.changes):
        console.print(Text(f"… {len(found.changes) - len(shown)} more with --all"))


def _saved(one: Advice) -> str:
    return size(one.saved_bytes) if one.saved_bytes and one.saved_bytes > 0 else ""


def how(one: Advice) -> str:
    """The option that simulates a change, the code that makes it, what was rewritten and what it alters."""
    return "; ".join(text for text in (one.set_line, one.code, one.done, one.alters) if text)
