"""Pages of a machine's own runs: what they taught, why one is slow, what to change."""

from __future__ import annotations

from stepsight.prediction.advise.advice import Advised
from stepsight.prediction.diagnose.diagnosis import Diagnosis
from stepsight.prediction.display import change, share, size, time
from stepsight.prediction.learn.lesson import Lesson, Validation
from stepsight.report.console.runs import (
    advice_headline,
    advice_lead,
    diagnosis_sentence,
    factor_lines,
    run_lines,
)
from stepsight.report.page.pieces import frame, joined, section, table, tag


def lesson_page(lesson: Lesson) -> str:
    """The page of ``stepsight calibrate --runs``."""
    title = f"{lesson.evidence.runs} runs on {lesson.based_on}"
    lead = "A part takes this many times as long as it is predicted to on a machine that nobody measured."
    made = table(("part", "factor", "90 % interval"), factor_lines(lesson))
    parts = [section("What the runs say of each part", made, lead=lead)]
    parts.append(section("The runs", table(*run_lines(lesson.rows, "with these factors"))))
    if lesson.evidence.left_out:
        parts.append(section("Left out", *(tag("p", one) for one in lesson.evidence.left_out)))
    return frame(title, tag("h1", title), parts)


def validation_page(found: Validation) -> str:
    """The page of ``stepsight validate RUNS.csv``."""
    title = f"{len(found.rows)} runs on {found.platform}"
    verdict = tag(
        "p",
        f"Mean error {share(found.mape_before)} without learning, {share(found.mape_after)} with the others"
        " learned.",
        classes="verdict",
    )
    titles = ("runs learned from", "mean error of the others", "inside the interval")
    points = [(str(p.runs), share(p.mape), share(p.inside)) for p in found.curve]
    parts = [
        section("Error against the number of runs", table(titles, points)),
        section("Each run", table(*run_lines(found.rows, "others learned"))),
    ]
    return frame(title, joined([tag("h1", title), verdict]), parts)


def diagnosis_page(found: Diagnosis) -> str:
    """The page of ``stepsight diagnose``."""
    p = found.prediction
    title = f"{p.workload or 'step'} on {p.platform}: {found.verdict}"
    top = joined([tag("h1", title), tag("p", diagnosis_sentence(found), classes="verdict")])
    words = ("as an option", "how to check")
    rows = [(s.name, share(s.probability), time(s.step_us), s.change, s.check) for s in found.suspects]
    lead = "Each suspect is simulated at the severity that fits the measurement best."
    parts = []
    if rows:
        titles = ("what may be wrong", "likely", "step it would give", *words)
        parts.append(section("Suspects", table(titles, rows, left=words), lead=lead))
    if found.longer:
        longer = table(("part", "longer by"), [(n, time(us)) for n, us in found.longer])
        parts.append(section("Longer than predicted in the trace", longer))
    if found.notes:
        parts.append(section("Notes", *(tag("p", n) for n in found.notes)))
    return frame(title, top, parts)


def advice_page(found: Advised) -> str:
    """What to change, what each change gains and needs."""
    title = advice_headline(found)
    words = ("option", "in code", "what else")
    rows = [
        (
            one.name, change(one.gain, 1) + ("" if one.beyond_interval else " ≈"), time(one.step_us),
            size(one.memory_bytes) if one.memory_bytes is not None else "–", one.set_line, one.code,
            "; ".join(text for text in (one.done, one.alters) if text),
        )
        for one in found.changes
    ]  # fmt: skip
    text = advice_lead(found) + ". ≈: smaller than the interval of the prediction."
    made = table(("change", "work per second", "step", "memory", *words), rows, left=words)
    parts = [section("Changes", made, lead=text)]
    if found.notes:
        parts.append(section("Notes", *(tag("p", note) for note in found.notes)))
    return frame(title, tag("h1", title), parts)
