"""A choice as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stepsight.report.sharding.console import LEVEL_NOTE
from stepsight.report.units import share, size, time
from stepsight.sharding.choice import Choice, PlanCandidate
from stepsight.tables.plan import COLUMN_WISE, DATA_PARALLEL, TABLE_WISE, Plan, Shard, plan_summary

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1c1c; }
body { margin: 2rem auto; padding: 0 1rem; max-width: 70rem; }
table { border-collapse: collapse; margin: 1rem 0 2rem; } th, td { padding: .25rem .7rem; text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.no { color: #8a8a8a; }
tr + tr td { border-top: 1px solid #e4e4e4; } .big { font-size: 1.6rem; color: #1a7f37; }
svg { vertical-align: middle; }
"""
_LOOKUP, _EXCHANGE, _WIDTH = "#2da44e", "#cf222e", 320


def page(choice: Choice) -> str:
    """The page."""
    winner, found = choice.winner, choice.found
    kinds = ", ".join(f"{n} {kind.replace('_', '-')}" for kind, n in plan_summary(winner.plan).items())
    gap = winner.step_us / found.bound_us - 1
    days = f" ({choice.objective} of {choice.days} days)" if choice.days > 1 else ""
    title = f"{choice.workload}: {choice.tables} tables over {choice.ranks} ranks of {choice.platform}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p class="big">{escape(winner.name)}: {time(winner.step_us)} a step{days}</p>
<p>{escape(kinds)}. {share(gap)} above the lower bound of {time(found.bound_us)};
{found.priced:,} plans priced in {found.seconds:.1f} s.</p>
<p>{escape(LEVEL_NOTE) if choice.level else ""}</p>
<h2>Plans</h2>
<table><tr><th>plan</th><th class="n">step</th><th class="n">slower</th><th class="n">imbalance</th>
<th class="n">fullest rank</th><th>why not</th></tr>
{"".join(_candidate(c, winner) for c in choice.candidates)}</table>
<h2>What each rank carries</h2>
<p><span style="color:{_LOOKUP}">■</span> lookups <span style="color:{_EXCHANGE}">■</span> all_to_all</p>
<table><tr><th class="n">rank</th><th class="n">parts</th><th class="n">lookup</th>
<th class="n">all_to_all</th><th class="n">memory</th><th></th></tr>
{"".join(_rank(winner, rank) for rank in range(choice.ranks))}</table>
<h2>Which table lives where</h2>
<table><tr><th>table</th><th>how</th><th>where</th></tr>
{"".join(_placement(name, shards) for name, shards in _by_table(winner.plan).items())}</table>
</body></html>
"""


def _candidate(c: PlanCandidate, winner: PlanCandidate) -> str:
    slower = "" if c is winner else f"+{share(c.step_us / winner.step_us - 1)}"
    cells = (time(c.step_us), slower, share(c.imbalance), size(max(c.memory_bytes)))
    figures = "".join(f'<td class="n">{cell}</td>' for cell in cells)
    row = "" if c.fits else ' class="no"'
    return f"<tr{row}><td>{escape(c.name)}</td>{figures}<td>{escape(c.why)}</td></tr>\n"


def _by_table(plan: Plan) -> dict[str, list[Shard]]:
    found: dict[str, list[Shard]] = {}
    for shard in plan.shards:
        found.setdefault(shard.table, []).append(shard)
    return found


def _placement(name: str, shards: Sequence[Shard]) -> str:
    """A table whole on its rank, by columns or by rows on several, or on all of them."""
    kind = shards[0].kind
    if kind == TABLE_WISE:
        where = f"rank {shards[0].rank}"
    elif kind == DATA_PARALLEL:
        where = "every rank"
    elif kind == COLUMN_WISE:
        where = ", ".join(f"rank {s.rank}: columns {s.columns[0]}–{s.columns[1] - 1}" for s in shards)
    else:
        ranks = sorted(s.rank for s in shards)
        where = f"ranks {ranks[0]}–{ranks[-1]}, {max(s.height for s in shards):,} rows each at most"
    return f"<tr><td>{escape(name)}</td><td>{kind.replace('_', '-')}</td><td>{where}</td></tr>\n"


def _rank(c: PlanCandidate, rank: int) -> str:
    busiest = max(a + b for a, b in zip(c.lookup_us, c.exchange_us, strict=True)) or 1.0
    lookup = _WIDTH * c.lookup_us[rank] / busiest
    exchange = _WIDTH * c.exchange_us[rank] / busiest
    cells = (
        str(rank), str(len(c.plan.on_rank(rank))), time(c.lookup_us[rank]), time(c.exchange_us[rank]),
        size(c.memory_bytes[rank]),
    )  # fmt: skip
    figures = "".join(f'<td class="n">{cell}</td>' for cell in cells)
    bar = (
        f'<svg width="{_WIDTH}" height="12"><rect width="{lookup:.1f}" height="12" fill="{_LOOKUP}"/>'
        f'<rect x="{lookup:.1f}" width="{exchange:.1f}" height="12" fill="{_EXCHANGE}"/></svg>'
    )
    return f"<tr>{figures}<td>{bar}</td></tr>\n"
