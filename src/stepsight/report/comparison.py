"""Two predictions: what differs, how much faster one is, and where the difference went."""

from __future__ import annotations

from dataclasses import fields

from rich.console import Console
from rich.text import Text

from stepsight.prediction.answer import Prediction
from stepsight.prediction.compare import Comparison
from stepsight.prediction.display import assumed, look, rate, rate_lines, share, time
from stepsight.report.charts import waterfall
from stepsight.report.pieces import (
    Cell,
    Fragment,
    Html,
    Listing,
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
)

SAME = 0.0005
"""Step times that differ by less than this share are the same."""


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print the comparison."""
    for name, p in (("A", comparison.before), ("B", comparison.after)):
        line = Text(f"{name}  {_name(p)}: {time(p.step_time_us)} per step (90 % interval {_interval(p)})")
        line.append("" if p.fits is not False else "  DOES NOT FIT", style="bold red")
        console.print(line.append(f"\n   assumed {assumed(p)}"))
    show_lines((f"differs: {name}: {a} → {b}" for name, a, b in differences(comparison)), console)
    console.print(Text(comparison_sentence(comparison), style="bold"))
    show_listing(_changes(comparison), console)


def comparison_page(comparison: Comparison) -> str:
    """The page of ``stepsight compare``."""
    a, b = comparison.before, comparison.after
    sections = [_waterfall(comparison), _changes(comparison).section(), _breakdowns(comparison)]
    return frame(f"{_name(a)} compared with {_name(b)}", _top(comparison), sections)


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
    heading = tag("h1", "A: ", _name(a), tag("span", " compared with ", classes="on"), "B: ", _name(b))
    changed = differences(c)
    differs = table(("what differs", "A", "B"), changed, left=("A", "B")) if changed else ""
    number = tag("div", headline(b.step_time_us, " (B)"), classes="headline")
    verdict = tag("p", comparison_sentence(c), classes="verdict")
    entries = [("A", time(a.step_time_us), _interval(a)), ("B", time(b.step_time_us), _interval(b))]
    return joined([heading, differs, number, verdict, figures(entries)])


def _waterfall(c: Comparison) -> Html:
    whole_a, whole_b = (sum(p.breakdown_us.values()) for p in (c.before, c.after))
    falls = [
        Fragment(look(x.category).word, x.difference_us, _signed(x.difference_us), look(x.category).colour)
        for x in c.changes
        if abs(x.difference_us) >= 0.0005 * max(whole_a, whole_b, 1e-9)
    ]
    ends = (Fragment(name, us, time(us), "total") for name, us in (("A", whole_a), ("B", whole_b)))
    drawn = waterfall(next(ends), falls, next(ends))
    lead = "From A's step to B's, part by part: what got shorter and what got longer."
    return section("From A to B", drawn, lead=lead)


def _signed(us: float) -> str:
    return f"+{time(us)}" if us >= 0.05 else time(us)


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
    rows = [(name, one.get(name, "–"), other.get(name, "–")) for name in dict.fromkeys((*one, *other))]
    return [row for row in (*rows, *_details(c), *_changed_gpu(c)) if row[1] != row[2]]


def _changed_gpu(c: Comparison) -> list[tuple[str, str, str]]:
    """Figures of one GPU that were changed (``--set platform.gpu.…``)."""
    a, b = c.before.gpu, c.after.gpu
    if a is None or b is None or a.name != b.name:
        return []
    return [(f"GPU {f.name}", str(getattr(a, f.name)), str(getattr(b, f.name))) for f in fields(a)]


def _details(c: Comparison) -> list[tuple[str, str, str]]:
    """Further choices that only one of the two has."""
    a, b = (p.setup.details if p.setup else () for p in (c.before, c.after))
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
