"""Pages of a machine's own runs: what they taught, why one is slow, what to change."""

from __future__ import annotations

import math

from stepsight.prediction.advise.advice import Advised
from stepsight.prediction.diagnose.diagnosis import Diagnosis
from stepsight.prediction.display import change, share, size, time
from stepsight.prediction.learn.lesson import Lesson, RunResult, Validation
from stepsight.report.console.runs import advice_headline, advice_lead, diagnosis_sentence
from stepsight.report.page.pieces import Column, Html, frame, joined, section, table, tag


def lesson_page(lesson: Lesson, *, command: str = "") -> str:
    """The page of ``stepsight calibrate --runs``."""
    title = f"{lesson.evidence.runs} runs on {lesson.based_on}"
    columns = [Column("part"), Column("factor", number=True), Column("90 % interval", number=True)]
    rows = [
        (word, f"{f:.2f}", f"{f / math.exp(1.645 * s):.2f}–{f * math.exp(1.645 * s):.2f}")
        for word, f, s in lesson.moved
    ]
    lead = "A part takes this many times as long as it is predicted to on a machine that nobody measured."
    parts = [section("What the runs say of each part", table(columns, rows), lead=lead)]
    parts.append(section("The runs", _runs(lesson.rows, "with these factors")))
    if lesson.evidence.left_out:
        parts.append(section("Left out", *(tag("p", one) for one in lesson.evidence.left_out)))
    return frame(title, tag("h1", title), parts, command=command)


def validation_page(found: Validation, *, command: str = "") -> str:
    """The page of ``stepsight validate RUNS.csv``."""
    title = f"{len(found.rows)} runs on {found.platform}"
    verdict = tag(
        "p",
        f"Mean error {share(found.mape_before)} without learning, {share(found.mape_after)} with the others"
        " learned.",
        classes="verdict",
    )
    columns = [
        Column(t, number=True)
        for t in ("runs learned from", "mean error of the others", "inside the interval")
    ]
    points = [(str(p.runs), share(p.mape), share(p.inside)) for p in found.curve]
    parts = [
        section("Error against the number of runs", table(columns, points)),
        section("Each run", _runs(found.rows, "others learned")),
    ]
    return frame(title, joined([tag("h1", title), verdict]), parts, command=command)


def _runs(rows: tuple[RunResult, ...], after: str) -> Html:
    titles = ("measured", "without learning", after, "90 % interval")
    columns = [Column("run", wide=True), *(Column(t, number=True) for t in titles)]
    return table(
        columns,
        [
            (
                r.name + (" (left out)" if r.left_out else ""), time(r.measured_us),
                f"{time(r.before_us)} ({change(r.error_before)})",
                f"{time(r.after_us)} ({change(r.error_after)})", f"{time(r.low_us)} to {time(r.high_us)}",
            )
            for r in rows
        ],
    )  # fmt: skip


def diagnosis_page(found: Diagnosis, *, command: str = "") -> str:
    """The page of ``stepsight diagnose``."""
    p = found.prediction
    title = f"{p.workload or 'step'} on {p.platform}: {found.verdict}"
    top = joined([tag("h1", title), tag("p", diagnosis_sentence(found), classes="verdict")])
    columns = [
        Column("what may be wrong"), Column("likely", number=True), Column("step it would give", number=True),
        Column("as an option"), Column("how to check", wide=True),
    ]  # fmt: skip
    rows = [(s.name, share(s.probability), time(s.step_us), s.change, s.check) for s in found.suspects]
    lead = "Each suspect is simulated at the severity that fits the measurement best."
    parts = [section("Suspects", table(columns, rows), lead=lead)] if rows else []
    if found.longer:
        longer = table(
            [Column("part"), Column("longer by", number=True)], [(n, time(us)) for n, us in found.longer]
        )
        parts.append(section("Longer than predicted in the trace", longer))
    if found.notes:
        parts.append(section("Notes", *(tag("p", n) for n in found.notes)))
    return frame(title, top, parts, command=command)


def advice_page(found: Advised, *, command: str = "") -> str:
    """What to change, what each change gains and needs."""
    title = advice_headline(found)
    columns = [
        Column("change"), Column("work per second", number=True), Column("step", number=True),
        Column("memory", number=True), Column("option"), Column("in code"), Column("what else", wide=True),
    ]  # fmt: skip
    rows = [
        (
            one.name, change(one.gain, 1) + ("" if one.beyond_interval else " ≈"), time(one.step_us),
            size(one.memory_bytes) if one.memory_bytes is not None else "–", one.set_line, one.code,
            "; ".join(text for text in (one.done, one.alters) if text),
        )
        for one in found.changes
    ]  # fmt: skip
    text = advice_lead(found) + ". ≈: smaller than the interval of the prediction."
    parts = [section("Changes", table(columns, rows), lead=text)]
    if found.notes:
        parts.append(section("Notes", *(tag("p", note) for note in found.notes)))
    return frame(title, joined([tag("h1", title)]), parts, command=command)
