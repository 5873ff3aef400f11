"""Advice in the terminal: what to change, what it gains, what it needs."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepsight.prediction.advise.advice import Advice, Advised
from stepsight.prediction.display import change, size, time


def headline(found: Advised) -> str:
    """The job as it is."""
    p = found.prediction
    memory = f", {size(p.memory.total_bytes)} of {size(p.memory.usable_bytes)}" if p.memory else ""
    return f"{p.workload or 'step'} on {p.platform}: {time(p.step_us)} per step{memory}"


def lead(found: Advised) -> str:
    """How to read the list."""
    if not found.fits:
        return "does not fit; changes that make it fit, those that lose the least time first"
    return f"{found.tried} changes simulated; those that gain, the largest gain first"


def show(found: Advised, console: Console, *, most: int | None = 10) -> None:
    """Print the changes."""
    console.print(Text(headline(found), style="bold"))
    console.print(Text(lead(found)))
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
