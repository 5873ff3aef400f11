"""Two predictions in the terminal: which is faster, and where the difference went."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepsight.prediction.answer import Prediction
from stepsight.prediction.compare import Comparison
from stepsight.prediction.display import assumed, look, rate_lines, time
from stepsight.report.words import comparison_sentence, differences


def show(comparison: Comparison, console: Console) -> None:
    """Print the comparison."""
    before, after = comparison.before, comparison.after
    for name, p in (("A", before), ("B", after)):
        console.print(_line(name, p))
    for name, one, other in differences(comparison):
        console.print(Text(f"differs: {name}: {one} → {other}"))
    console.print(Text(comparison_sentence(comparison), style="bold"))
    per = "mean over ranks" if comparison.same_work else "mean over ranks; steps of different work"
    table = Table(title=f"where the difference went ({per})", title_justify="left", box=None)
    for name in ("", "A", "B", "B − A"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for change in comparison.changes:
        word = look(change.category).word
        table.add_row(word, time(change.before_us), time(change.after_us), time(change.difference_us))
    a, b = dict(rate_lines(before)), dict(rate_lines(after))
    for name in {**a, **b}:
        table.add_row(name, a.get(name, ""), b.get(name, ""), "")
    console.print(table)


def _line(name: str, p: Prediction) -> Text:
    fits = "" if p.fits is not False else "  DOES NOT FIT"
    line = Text(f"{name}  {p.workload or 'step'} on {p.platform}: {time(p.step_us)} per step")
    line.append(f" (90 % interval {time(p.low_us)} to {time(p.high_us)})")
    line.append(fits, style="bold red")
    return line.append(f"\n   assumed {assumed(p)}")
