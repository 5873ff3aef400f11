"""A choice of a sharding plan as a page: the plans, the load per rank, and which table lives where."""

from __future__ import annotations

from collections.abc import Sequence

from stepsight.prediction.display import share, size, time
from stepsight.report.console.sharding import SAME_TIME_NOTE, kinds_sentence
from stepsight.report.page.pieces import (
    Fragment,
    Html,
    bar,
    figures,
    frame,
    headline,
    joined,
    legend,
    section,
    table,
    tag,
)
from stepsight.report.page.prediction import embedding_sections
from stepsight.sharding.choice import Choice, PlanCandidate
from stepsight.tables.plan import Shard

KIND_COLOURS = {
    "table_wise": "gemm", "column_wise": "attention", "row_wise": "optimizer", "table_row_wise": "copy",
    "data_parallel": "embedding",
}  # fmt: skip
MOST_RANKS = 128
"""Ranks whose tables are drawn; the plan file has them all."""
MOST_SEGMENTS = 60
"""Parts of a rank drawn by themselves; the smallest ones beyond are drawn together."""


def sharding_page(choice: Choice) -> str:
    """The page of ``stepsight shard``."""
    title = f"{choice.workload}: {choice.tables} tables over {choice.ranks} ranks of {choice.platform}"
    sections = [_plans(choice), _loads(choice), _map(choice.winner)]
    if choice.figures:
        sections += embedding_sections(choice.figures)
    return frame(title, _top(choice), sections)


def _top(choice: Choice) -> Html:
    winner, found = choice.winner, choice.found
    days = f" ({choice.objective} of {choice.days} days)" if choice.days > 1 else ""
    verdict = [tag("b", winner.name), f" is the best plan found{days}: {kinds_sentence(winner.plan)}."]
    if choice.level:
        verdict.append(f" {SAME_TIME_NOTE}")
    heading = tag("h1", choice.workload, tag("span", " on ", classes="on"), choice.platform)
    entries = [
        ("tables", f"{choice.tables:,}", f"over {choice.ranks:,} ranks"),
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


def _plans(choice: Choice) -> Html:
    winner = choice.winner
    reason = "compared with the best"
    titles = ("plan", "step", "slower by", "imbalance", "fullest rank", reason)
    rows = [
        (c.name, time(c.step_us), "" if c is winner else share(c.step_us / winner.step_us - 1),
         share(c.imbalance),
         size(max(c.memory_bytes)), c.why if c.fits else tag("span", c.why, classes="bad"))
        for c in choice.candidates
    ]  # fmt: skip
    lead = "The best plan first, then the standard ones."
    return section("Plans", table(titles, rows, left=(reason,)), lead=lead)


def _loads(choice: Choice) -> Html:
    c = choice.winner
    busiest = max(a + b for a, b in zip(c.lookup_us, c.exchange_us, strict=True)) or 1.0
    rows = []
    for rank in range(min(choice.ranks, MOST_RANKS)):
        lookup, exchange = c.lookup_us[rank], c.exchange_us[rank]
        parts = [
            Fragment("lookups", lookup, time(lookup), "embedding"),
            Fragment("all_to_all", exchange, time(exchange), "communication"),
        ]
        drawn = bar(parts, total=busiest, name=f"rank {rank}", thin=True)
        rows.append((f"rank\u00a0{rank}", drawn, time(lookup), time(exchange), size(c.memory_bytes[rank])))
    meaning = legend([("lookups", "embedding"), ("all_to_all", "communication")])
    lead = "Lookup and communication time of the chosen plan." + _more(choice.ranks)
    titles = ("rank", "", "lookups", "all_to_all", "memory")
    return section("Load per rank", table(titles, rows), meaning, lead=lead)


def _more(ranks: int) -> str:
    return f" The first {MOST_RANKS} of {ranks:,} ranks." if ranks > MOST_RANKS else ""


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
    drawn = table(("rank", ""), rows)
    return tag(
        "div",
        section("Which table lives where", drawn, meaning, lead=lead + _more(plan.ranks)),
        classes="map",
    )


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
