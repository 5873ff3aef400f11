"""A choice of a sharding plan: the plans, the load per rank, and which table lives where."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from stepsight.platform.load import board_taken
from stepsight.prediction.display import change, share, size, time
from stepsight.report.pieces import (
    Bar,
    Fragment,
    Html,
    Listing,
    bar,
    figures,
    frame,
    headline,
    joined,
    legend,
    section,
    show_lines,
    show_listing,
    table,
    tag,
    whole,
)
from stepsight.report.prediction import embedding_sections, tables_listing
from stepsight.sharding.choice import Choice, PlanCandidate
from stepsight.tables.plan import Plan, Shard, plan_summary
from stepsight.terminal import counted

BAR_WIDTH = 32
MOST_RANKS_LISTED, MOST_RANKS = 16, 128
"""Ranks that the terminal and a page show; the plan file has them all."""
MOST_SEGMENTS = 60
"""Parts of a rank drawn by themselves; the smallest ones beyond are drawn together."""
SAME_TIME_NOTE = (
    "All plans that fit take the same time: the host, the dense part or the link sets the step here, not the "
    "tables. `stepsight predict` shows what bounds the step."
)
KIND_COLOURS = {
    "table_wise": "gemm", "column_wise": "attention", "row_wise": "optimizer", "table_row_wise": "copy",
    "data_parallel": "embedding",
}  # fmt: skip


def show(choice: Choice, console: Console) -> None:
    """Print the choice."""
    console.print(_headline(choice))
    show_listing(_plans(choice), console)
    show_listing(_loads(choice, MOST_RANKS_LISTED), console)
    if choice.figures:
        show_listing(tables_listing(choice.figures), console)
    if choice.level:
        show_lines([SAME_TIME_NOTE], console)
    show_lines((f"note: {line}" for line in board_taken(choice.platform)), console)


def sharding_page(choice: Choice) -> str:
    """The page of ``stepsight shard``."""
    sections = [_plans(choice).section(), _loads(choice, MOST_RANKS).section(), _map(choice.winner)]
    if choice.figures:
        sections += embedding_sections(choice.figures)
    return frame(_title(choice), _top(choice), sections)


def _title(choice: Choice) -> str:
    return (
        f"{choice.workload}: {counted(choice.tables, 'table')} over {counted(choice.ranks, 'rank')} of "
        f"{choice.platform}"
    )


def kinds_sentence(plan: Plan) -> str:
    """How many parts of each kind: ``40 table-wise, 20 row-wise``."""
    return ", ".join(f"{count} {kind.replace('_', '-')}" for kind, count in plan_summary(plan).items())


def _headline(choice: Choice) -> Text:
    winner, found = choice.winner, choice.found
    text = Text(f"{_title(choice)}\n", style="bold")
    text.append("best plan  ", style="not bold")
    text.append(f"{winner.name}, {time(winner.step_us)} per step", style="bold green")
    rest = f" ({choice.objective} of {choice.days} days)" if choice.days > 1 else ""
    rest += f"\n           {kinds_sentence(winner.plan)}"
    rest += f"; {_hosted(choice)}" if choice.hosted_bytes else ""
    bound = "no lower bound is known for this stack"
    if found.bound_us is not None and found.gap is not None:
        bound = f"at most {share(found.gap)} from optimal (lower bound {time(found.bound_us)})"
    rest += f"\n           {bound}; {counted(found.priced, 'plan')} priced in {found.seconds:.1f} s"
    rest += " (ended by --budget: another run may find another plan)" if found.timed_out else ""
    return text.append(rest, style="not bold")


def _hosted(choice: Choice) -> str:
    return f"{size(choice.hosted_bytes)} of rows and optimizer state in host memory"


def _top(choice: Choice) -> Html:
    winner, found = choice.winner, choice.found
    days = f" ({choice.objective} of {choice.days} days)" if choice.days > 1 else ""
    verdict = [tag("b", winner.name), f" is the best plan found{days}: {kinds_sentence(winner.plan)}."]
    if choice.hosted_bytes:
        verdict.append(f" {_hosted(choice)}.")
    if choice.level:
        verdict.append(f" {SAME_TIME_NOTE}")
    heading = tag("h1", choice.workload, tag("span", " on ", classes="on"), whole(choice.platform))
    entries = [
        ("tables", f"{choice.tables:,}", f"over {counted(choice.ranks, 'rank')}"),
        (
            "from optimal at most",
            "–" if found.gap is None else share(found.gap),
            "no bound for this stack" if found.bound_us is None else f"bound {time(found.bound_us)}",
        ),
        ("imbalance", share(winner.imbalance), "busiest rank over the mean"),
        ("fullest rank", size(max(winner.memory_bytes)), f"of {size(choice.room_bytes)} for tables"),
        ("plans priced", f"{found.priced:,}", f"in {found.seconds:.1f} s"),
    ]
    step = tag("div", headline(winner.step_us), classes="headline")
    return joined([heading, step, tag("p", *verdict, classes="verdict"), figures(entries)])


def _plans(choice: Choice) -> Listing:
    winner, reason = choice.winner, "compared with the best"
    rows = [
        (c.name, time(c.step_us), "" if c is winner else change(c.step_us / winner.step_us - 1, 1),
         size(max(c.memory_bytes)), c.why)
        for c in choice.candidates
    ]  # fmt: skip
    return Listing("plans", ("plan", "step", "slower", "memory", reason), rows, (reason,))


def _loads(choice: Choice, most: int) -> Listing:
    c = choice.winner
    busiest = max(a + b for a, b in zip(c.lookup_us, c.exchange_us, strict=True))
    rows = []
    for rank in range(min(choice.ranks, most)):
        lookup, exchange = c.lookup_us[rank], c.exchange_us[rank]
        parts = (
            Fragment("lookup", lookup, time(lookup), "embedding"),
            Fragment("all_to_all", exchange, time(exchange), "communication"),
        )
        drawn = Bar(parts, max(busiest, 1e-9), f"rank {rank}", BAR_WIDTH)
        held = str(len(c.plan.on_rank(rank))), time(lookup), time(exchange), size(c.memory_bytes[rank])
        rows.append((str(rank), *held, drawn))
    titles = ("rank", "parts", "lookup", "all_to_all", "memory", "lookup, all_to_all")
    left = choice.ranks - len(rows)
    below = [f"… and {left} more (see --json)"] if left else []
    lead = "Lookup and communication time of the chosen plan."
    return Listing("load per rank", titles, rows, titles[-1:], lead, below)


def _map(winner: PlanCandidate) -> Html:
    plan = winner.plan
    most = max((sum(map(_elements, plan.on_rank(r))) for r in range(plan.ranks)), default=1) or 1
    rows = []
    for rank in range(min(plan.ranks, MOST_RANKS)):
        parts = _segments(sorted(plan.on_rank(rank), key=_elements, reverse=True))
        rows.append((f"rank\u00a0{rank}", bar(parts, total=most, name=f"tables of rank {rank}")))
    used = [kind for kind in KIND_COLOURS if any(s.kind == kind for s in plan.shards)]
    meaning = legend((kind.replace("_", "-"), KIND_COLOURS[kind]) for kind in used)
    lead = "Each part of a table by its size in weights; colour by how the table is cut. Point at one."
    lead += f" The first {MOST_RANKS} of {plan.ranks:,} ranks." if plan.ranks > MOST_RANKS else ""
    drawn = section("Which table lives where", table(("rank", ""), rows), meaning, lead=lead)
    return tag("div", drawn, classes="map")


def _segments(shards: Sequence[Shard]) -> list[Fragment]:
    shown = [
        Fragment(s.table, _elements(s), _described(s), KIND_COLOURS.get(s.kind, "other"))
        for s in shards[:MOST_SEGMENTS]
    ]
    rest = shards[MOST_SEGMENTS:]
    if rest:
        total = sum(map(_elements, rest))
        shown.append(Fragment(f"{len(rest)} more", total, f"{total:,} weights", "other"))
    return shown


def _elements(shard: Shard) -> int:
    return shard.width * shard.height


def _described(s: Shard) -> str:
    cut, (first, last), (left, right) = s.kind.replace("_", "-"), s.rows, s.columns
    return f"{cut}, rows {first:,} to {last:,}, columns {left} to {right}"
