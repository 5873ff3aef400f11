"""A choice in the terminal: the winner, who came next and why, and the load per rank."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepsight.prediction.display import share, size, time
from stepsight.report.console.prediction import embedding_tables
from stepsight.sharding.choice import Choice, PlanCandidate
from stepsight.tables.plan import Plan, plan_summary
from stepsight.terminal import listing

BAR_WIDTH = 32
MOST_RANKS_LISTED = 16
SAME_TIME_NOTE = (
    "All plans that fit take the same time: the host, the dense part or the link sets the step here, not the "
    "tables. The most even plan was chosen. `stepsight predict` shows what bounds the step."
)


def show(choice: Choice, console: Console) -> None:
    """Print the choice."""
    console.print(_headline(choice))
    console.print(_candidates(choice))
    console.print(_ranks(choice))
    if choice.figures:
        console.print(embedding_tables(choice.figures))
    if choice.level:
        console.print(SAME_TIME_NOTE)


def kinds_sentence(plan: Plan) -> str:
    """How many parts of each kind: ``40 table-wise, 20 row-wise``."""
    return ", ".join(f"{count} {kind.replace('_', '-')}" for kind, count in plan_summary(plan).items())


def _headline(choice: Choice) -> Text:
    winner, found = choice.winner, choice.found
    text = Text()
    text.append(
        f"{choice.workload}: {choice.tables} tables over {choice.ranks} ranks of {choice.platform}\n",
        style="bold",
    )
    text.append("best plan  ")
    text.append(f"{winner.name}, {time(winner.step_us)} per step", style="bold green")
    if choice.days > 1:
        text.append(f" ({choice.objective} of {choice.days} days)")
    text.append(f"\n           {kinds_sentence(winner.plan)}")
    bound = "no lower bound is known for this stack"
    if found.bound_us is not None and found.gap is not None:
        bound = f"at most {share(found.gap)} from optimal (lower bound {time(found.bound_us)})"
    text.append(f"\n           {bound}; ")
    text.append(f"{found.priced:,} plans priced in {found.seconds:.1f} s")
    if found.timed_out:
        text.append(" (ended by --budget: another run may find another plan)")
    return text


def _candidates(choice: Choice) -> Table:
    reason = "compared with the best"
    table = listing(("plan", "step", "slower", "memory", reason), (), title="plans", left=(reason,))
    for c in choice.candidates:
        more = c.step_us / choice.winner.step_us - 1
        slower = "" if c is choice.winner else ("−" if more < 0 else "+") + share(abs(more))
        table.add_row(
            c.name, time(c.step_us), slower, size(max(c.memory_bytes)), c.why,
            style="" if c.fits else "bright_black",
        )  # fmt: skip
    return table


def _ranks(choice: Choice) -> Table:
    winner = choice.winner
    titles = ("rank", "parts", "lookup", "all_to_all", "memory", "lookup, all_to_all")
    table = listing(titles, (), title="load per rank", left=titles[-1:])
    parts = [len(winner.plan.on_rank(rank)) for rank in range(choice.ranks)]
    for rank in range(min(choice.ranks, MOST_RANKS_LISTED)):
        table.add_row(
            str(rank), str(parts[rank]), time(winner.lookup_us[rank]), time(winner.exchange_us[rank]),
            size(winner.memory_bytes[rank]), _bar(winner, rank),
        )  # fmt: skip
    if choice.ranks > MOST_RANKS_LISTED:
        table.add_row("…", "", "", "", "", f"and {choice.ranks - MOST_RANKS_LISTED} more (see --json)")
    return table


def _bar(candidate: PlanCandidate, rank: int) -> Text:
    busiest = max(a + b for a, b in zip(candidate.lookup_us, candidate.exchange_us, strict=True))
    scale = BAR_WIDTH / max(busiest, 1e-9)
    lookup = round(scale * candidate.lookup_us[rank])
    exchange = round(scale * (candidate.lookup_us[rank] + candidate.exchange_us[rank])) - lookup
    return Text("█" * lookup, style="green") + Text("█" * exchange, style="red")
