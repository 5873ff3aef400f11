"""Predictions against each other and against runs: what differs, what runs teach, what to change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

from rich.console import Console
from rich.text import Text

from stepsight.platform.load import board_taken
from stepsight.prediction.advice import Advice, Advised
from stepsight.prediction.answer import INTERVAL_SIGMAS, Prediction
from stepsight.prediction.compare import Comparison
from stepsight.prediction.diagnosis import SLOW, USUAL, Diagnosis
from stepsight.prediction.display import assumed, change, look, rate, rate_lines, share, size, time
from stepsight.prediction.learn.lesson import Lesson, RunResult, Validation
from stepsight.report.charts import waterfall
from stepsight.report.pieces import (
    Cell,
    Fragment,
    Html,
    Listing,
    Report,
    bar,
    figures,
    frame,
    headline,
    joined,
    section,
    show_lines,
    show_listing,
    table,
    tag,
    whole,
)
from stepsight.terminal import counted

SAME = 0.0005
"""Step times that differ by less than this share are the same."""


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print the comparison."""
    for name, p in (("A", comparison.before), ("B", comparison.after)):
        line = Text(f"{name}  {_name(p)}: {time(p.step_time_us)} per step (90 % interval {_interval(p)})")
        line.append("" if p.fits is not False else "  DOES NOT FIT", style="bold red")
        same = p is comparison.after and assumed(p) == assumed(comparison.before)
        console.print(line if same else line.append(f"\n   assumed {assumed(p)}"))
    show_lines((f"differs: {name}: {a} → {b}" for name, a, b in differences(comparison)), console)
    show_lines([f"note: {comparison.other_stack}"] if comparison.other_stack else [], console)
    console.print(Text(comparison_sentence(comparison), style="bold"))
    show_listing(_changes(comparison), console)
    show_lines(_boards(comparison.before, comparison.after), console)


def comparison_page(comparison: Comparison) -> str:
    """The page of ``stepsight compare``."""
    a, b = comparison.before, comparison.after
    sections = [_waterfall(comparison), _changes(comparison).section(), _breakdowns(comparison)]
    return frame(f"{_name(a)} compared with {_name(b)}", _top(comparison), sections)


def _boards(*predictions: Prediction) -> list[str]:
    """Which boards short names of platforms were taken as."""
    found = (board_taken(p.platform, p.spec.gpu.name if p.spec else "") for p in predictions)
    return list(dict.fromkeys(f"note: {line}" for lines in found for line in lines))


def _name(p: Prediction) -> str:
    return f"{p.workload or 'step'} on {p.platform}"


def _interval(p: Prediction) -> str:
    return f"{time(p.low_us)} to {time(p.high_us)}"


def _changes(c: Comparison) -> Listing:
    """Every part and every rate of both."""
    a, b = dict(rate_lines(c.before)), dict(rate_lines(c.after))
    rows: list[tuple[Cell, ...]] = [
        (look(x.category), time(x.before_us), time(x.after_us),
         time(x.difference_us))
        for x in c.changes
    ]  # fmt: skip
    rows += [(name, a.get(name, ""), b.get(name, ""), "") for name in {**a, **b}]
    per = "mean over ranks" if c.same_work else "mean over ranks; steps of different work"
    return Listing(f"where the difference went ({per})", ("part", "A", "B", "B − A"), rows)


def _top(c: Comparison) -> Html:
    a, b = c.before, c.after
    heading = tag(
        "h1", whole(f"A: {_name(a)}"), tag("span", " compared with ", classes="on"), whole(f"B: {_name(b)}")
    )
    changed = differences(c)
    differs = table(("what differs", "A", "B"), changed, left=("A", "B")) if changed else ""
    number = tag("div", headline(b.step_time_us, " (B)"), classes="headline")
    verdict = tag("p", comparison_sentence(c), classes="verdict")
    entries = [("A", time(a.step_time_us), _interval(a)), ("B", time(b.step_time_us), _interval(b))]
    other = tag("p", c.other_stack) if c.other_stack else ""
    return joined([heading, differs, other, number, verdict, figures(entries)])


def _waterfall(c: Comparison) -> Html:
    whole_a, whole_b = (sum(p.breakdown_us.values()) for p in (c.before, c.after))
    falls = [
        Fragment(
            look(x.category).word,
            x.difference_us,
            "+" * (x.difference_us >= 0.05) + time(x.difference_us),
            look(x.category).colour,
        )
        for x in c.changes
        if abs(x.difference_us) >= 0.0005 * max(whole_a, whole_b, 1e-9)
    ]
    ends = (Fragment(name, us, time(us), "total") for name, us in (("A", whole_a), ("B", whole_b)))
    drawn = waterfall(next(ends), falls, next(ends))
    lead = "From A's step to B's, part by part: what got shorter and what got longer."
    return section("From A to B", drawn, lead=lead)


def _breakdowns(c: Comparison) -> Html:
    longest = max(sum(p.breakdown_us.values()) for p in (c.before, c.after)) or 1.0
    drawn = []
    for word, p in (("A", c.before), ("B", c.after)):
        whole = sum(p.breakdown_us.values()) or 1.0
        parts = [
            Fragment(look(n).word, us, f"{time(us)}, {share(us / whole)}", look(n).colour)
            for n, us in p.breakdown_us.items()
        ]
        drawn += [tag("h3", f"{word}  {_name(p)}"), bar(parts, total=longest, name=word)]
    return section("Both steps on one scale", *drawn)


def comparison_sentence(c: Comparison) -> str:
    """Which is faster, by what factor and by how much time; where steps do different work, by its rate."""
    if not c.same_work:
        return f"{_work_words(c)}: {_rate_words(c)}."
    if abs(c.after.step_time_us - c.before.step_time_us) <= SAME * c.before.step_time_us:
        return "A and B take the same time."
    by, ratio = time(abs(c.difference_us)), c.after.step_time_us / c.before.step_time_us
    if ratio < 1:
        return f"B's step is {share(1 - ratio)} shorter than A's: {by} less ({c.speedup:.2f}× as fast)."
    return f"B's step is {share(ratio - 1)} longer than A's: {by} more ({c.speedup:.2f}× as fast)."


def differences(c: Comparison) -> list[tuple[str, str, str]]:
    """What differs between A and B before any time: name, A's value, B's value."""
    one, other = _settings(c.before), _settings(c.after)
    axes = {name for p in (c.before, c.after) if p.setup for name, _ in p.setup.parallel}
    absent = {name: "1" if name in axes else "–" for name in dict.fromkeys((*one, *other))}
    rows = [(name, one.get(name, no), other.get(name, no)) for name, no in absent.items()]
    return [row for row in (*rows, *_details(c), *_changed_platform(c)) if row[1] != row[2]]


def _changed_platform(c: Comparison) -> list[tuple[str, str, str]]:
    """Figures of one platform that were changed (``--set platform.…``)."""
    a, b = c.before.spec, c.after.spec
    if a is None or b is None or (a.name, a.gpu.name) != (b.name, b.gpu.name):
        return []
    return [
        (f"platform.{part}.{f.name}", f"{getattr(one, f.name)}", f"{getattr(other, f.name)}")
        for part in ("gpu", "link", "nic", "host", "contention")
        if (one := getattr(a, part)) is not None and (other := getattr(b, part)) is not None
        for f in fields(one)
    ]


def _details(c: Comparison) -> list[tuple[str, str, str]]:
    """Further choices that only one of the two has."""
    a, b = (
        [x for x in p.setup.details if not x.startswith(("FSDP", "ZeRO")) and "recomputation" not in x]
        if p.setup else [] for p in (c.before, c.after)
    )  # fmt: skip
    only_a, only_b = (", ".join(x for x in one if x not in two) for one, two in ((a, b), (b, a)))
    return [("settings", only_a or "–", only_b or "–")]


def _settings(p: Prediction) -> dict[str, str]:
    """The settings of a prediction by name, as far as its setup states them."""
    found = {"workload": p.workload, "platform": p.platform, "GPUs": f"{len(p.ranks):,}"}
    setup = p.setup
    if setup is None:
        return found
    found["batch"] = rate(setup.samples) if setup.samples else ""
    found["sequence"] = f"{setup.sequence:,}" if setup.sequence else ""
    found["precision"] = setup.precision
    found |= {name: f"{size:,}" for name, size in setup.parallel if size > 1}
    found["ZeRO stage"] = str(setup.zero or "")
    found["recompute"] = setup.recompute
    found["framework"] = setup.framework
    return {name: value for name, value in found.items() if value}


def _work_words(c: Comparison) -> str:
    """What a step does in each, where that differs."""
    a, b = c.before.setup, c.after.setup
    for unit in ("samples", "tokens"):
        one, other = getattr(a, unit, None), getattr(b, unit, None)
        if one and other and one != other:
            return f"A step of B does {rate(other)} {unit}, one of A {rate(one)}"
    return f"A step of B does {c.work_ratio:.4g}× the samples of A's"


def _rate_words(c: Comparison) -> str:
    """Which does more in a second."""
    ratio = c.throughput_ratio or 1.0
    a, b = c.before.throughput, c.after.throughput
    rates = ""
    for unit, one, other in (
        ("tokens/s", a.tokens_per_s, b.tokens_per_s), ("samples/s", a.samples_per_s, b.samples_per_s),
    ):  # fmt: skip
        if one and other and not rates:
            rates = f" ({rate(other)} against {rate(one)} {unit})"
    if abs(ratio - 1) <= SAME:
        return f"A and B are equally fast{rates}"
    return f"B trains {max(ratio, 1 / ratio):.2f}× {'faster' if ratio > 1 else 'slower'} than A{rates}"


def lesson_report(lesson: Lesson) -> Report:
    """What runs taught about a platform."""
    memory, sigmas = lesson.learned.memory, INTERVAL_SIGMAS
    factors = [
        (word, f"{f:.2f}", f"{f / math.exp(sigmas * s):.2f}–{f * math.exp(sigmas * s):.2f}")
        for word, f, s in lesson.moved
    ]
    title = "time of each part, as a multiple of its prediction without runs"
    below = [*(f"left out: {one}" for one in lesson.evidence.left_out), *(f"note: {n}" for n in lesson.notes)]
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
        f" {found.measured_us / p.step_time_us:.2f} times the prediction;"
        f" {_of_runs(found.percentile)} of such runs are predicted to be faster"
    )
    usual = "no fault: the difference is within what the prediction does not know"
    longer = [(look(name).word, f"+{time(us)}") for name, us in found.longer]
    return Report(
        f"{p.workload or 'step'} on {p.platform}",
        (sentence, *found.notes, *_boards(p), *([usual] if found.verdict == USUAL else [])),
        (
            *([_suspects(found)] if found.verdict == SLOW else []),
            Listing("longer than predicted in the trace", ("part", "longer by"), longer),
        ),
    )


def _of_runs(part: float) -> str:
    """A share of predicted runs; never all and never none."""
    return ">99.9 %" if part > 0.999 else "<0.1 %" if part < 0.001 else share(part)


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
            f"to distinguish them, measure the job with {line}: {time(apart.usual_us)} if nothing is wrong,"
            f" {time(apart.steps_us[0])} with {first.name}, {time(apart.steps_us[1])} with {second.name}"
        )
    words = ("what may be wrong", "as an option")
    titles = ("#", words[0], "likely", "step it would give", words[1])
    return Listing("suspects, the likeliest first", titles, rows, words, below=below)


def advice_report(found: Advised, most: int | None = None) -> Report:
    """What to change, what each change gains and needs; the first ``most`` changes."""
    p = found.prediction
    memory = f", {size(p.memory.total_bytes)} of {size(p.memory.usable_bytes)}" if p.memory else ""
    lead = f"{found.tried} changes simulated; those that gain, largest gain first"
    nothing = "nothing that was tried gains"
    if not found.fits:
        lead = "does not fit; changes that make it fit, those that lose the least time first"
        nothing = "nothing that was tried makes it fit"
    return Report(
        f"{p.workload or 'step'} on {p.platform}: {time(p.step_time_us)} per step{memory}",
        (lead, *found.notes, *_boards(p), *([] if found.changes else [nothing])),
        (_advised_changes(found, found.changes[:most]),),
    )


def _advised_changes(found: Advised, shown: Sequence[Advice]) -> Listing:
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
