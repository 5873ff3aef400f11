"""The page of ``stepsight advise``."""

from __future__ import annotations

from stepsight.prediction.advise.advice import Advised
from stepsight.prediction.display import change, size, time
from stepsight.report.console.advice import headline, lead
from stepsight.report.page.pieces import Column, frame, joined, section, table, tag


def page(found: Advised, *, command: str = "") -> str:
    """What to change, what each change gains and needs."""
    title = headline(found)
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
    text = lead(found) + ". ≈: smaller than the interval of the prediction."
    parts = [section("Changes", table(columns, rows), lead=text)]
    if found.notes:
        parts.append(section("Notes", *(tag("p", note) for note in found.notes)))
    return frame(title, joined([tag("h1", title)]), parts, command=command)
