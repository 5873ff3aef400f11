"""Two predictions on one page: how much faster, and where the difference went."""

from __future__ import annotations

from stepsight.prediction.answer import Prediction
from stepsight.prediction.compare import Comparison
from stepsight.prediction.display import look, rate_lines, share, time
from stepsight.report.page.charts import Fall, waterfall
from stepsight.report.page.pieces import (
    Fragment,
    Html,
    bar,
    figures,
    frame,
    headline,
    joined,
    named,
    section,
    table,
    tag,
)
from stepsight.report.words import comparison_sentence, differences


def comparison_page(comparison: Comparison) -> str:
    """The page of ``stepsight compare``."""
    a, b = comparison.before, comparison.after
    title = f"{_name(a)} compared with {_name(b)}"
    sections = [_waterfall(comparison), _both(comparison), _breakdowns(comparison)]
    return frame(title, _top(comparison), sections)


def _name(p: Prediction) -> str:
    return f"{p.workload or 'step'} on {p.platform}"


def _top(c: Comparison) -> Html:
    a, b = c.before, c.after
    heading = tag("h1", "A: ", _name(a), tag("span", " compared with ", classes="on"), "B: ", _name(b))
    number = headline(b.step_us, " (B)")
    verdict = tag("p", comparison_sentence(c), classes="verdict")
    entries = [("A", time(a.step_us), _interval(a)), ("B", time(b.step_us), _interval(b))]
    return joined(
        [heading, _differences(c), tag("div", number, classes="headline"), verdict, figures(entries)]
    )


def _differences(c: Comparison) -> Html:
    """What was changed from A to B, before what it does."""
    rows = differences(c)
    return table(("what differs", "A", "B"), rows, left=("A", "B")) if rows else Html("")


def _interval(p: Prediction) -> str:
    return f"{time(p.low_us)} to {time(p.high_us)}"


def _waterfall(c: Comparison) -> Html:
    whole_a, whole_b = (sum(p.breakdown_us.values()) for p in (c.before, c.after))
    falls = [
        Fall(look(x.category).word, x.difference_us, _signed(x.difference_us), look(x.category).colour)
        for x in c.changes
        if abs(x.difference_us) >= 0.0005 * max(whole_a, whole_b, 1e-9)
    ]
    drawn = waterfall(("A", whole_a, time(whole_a)), falls, ("B", whole_b, time(whole_b)))
    return section(
        "Where the difference went", drawn,
        lead="From A's step to B's, part by part (mean over ranks): what got shorter and what got longer."
        + ("" if c.same_work else " The two steps do not do the same work."),
    )  # fmt: skip


def _signed(us: float) -> str:
    return f"+{time(us)}" if us >= 0.05 else time(us)


def _both(c: Comparison) -> Html:
    rows = [
        (named(look(x.category).colour, look(x.category).word), time(x.before_us), time(x.after_us),
         _signed(x.difference_us))
        for x in c.changes
    ]  # fmt: skip
    a, b = dict(rate_lines(c.before)), dict(rate_lines(c.after))
    rates = [(name, a.get(name, "–"), b.get(name, "–"), "") for name in {**a, **b}]
    return section("Side by side", table(("part", "A", "B", "B − A"), [*rows, *rates]))


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
