"""How much a pick loses against the best that ran, group by group.

The candidates of a group are all of its measured rows, crashed ones included. They are ranked as ``stepsight
tune`` ranks them: by predicted time among what is sure to fit. Nothing is fitted on the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.datasets.llm.case import Case
from lab.score.llm.rows import platform_of
from stepsight.tuning.evaluate import evaluate
from stepsight.tuning.search import ranked
from stepsight.tuning.trial import Row, Trial

TOP = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A measured row next to its prediction; ``row`` None where the tool cannot express it."""

    case: Case
    row: Row | None


@dataclass(frozen=True, slots=True)
class GroupRegret:
    """One group. Regrets are shares of the best measured time: 0.05 is 5 % slower than the best.

    ``regret`` is that of the first of our ranking that ran, ``top_regret`` that of the best of our first
    three; ``crashed`` says that our first pick did not run.
    """

    group: str
    candidates: int
    ran: int
    best: str
    best_ms: float
    pick: str
    pick_ms: float
    predicted_ms: float
    regret: float
    top_regret: float
    crashed: bool


@dataclass(frozen=True, slots=True)
class FileRegret:
    """All groups of one file, as a user asks and without the runs that the file's rule leaves out as slow;
    means are over groups. ``slow_runs``: how many were left out; ``with_slow_runs``: all rows;
    ``with_cluster``: with the bandwidths that the cluster measured, where its file states them."""

    file: str
    groups: int
    mean_regret: float
    top3_regret: float
    crashed_picks: float
    each: tuple[GroupRegret, ...] = field(default=())
    slow_runs: int = 0
    with_slow_runs: FileRegret | None = None
    with_cluster: FileRegret | None = None

    @property
    def worst(self) -> GroupRegret | None:
        return max(self.each, key=lambda g: g.regret, default=None)


def candidate(case: Case, *, asked: bool = False) -> Candidate:
    """A case as tune would price it; ``asked``: by the row and its recipe, without its cluster's network."""
    document, site = (case.asked, None) if asked else (case.document, case.site)
    if document is None:
        return Candidate(case, None)
    given = document.get("parallel", {})
    settings = {f"parallel.{name}": given.get(name, 1) for name in ("tensor", "micro_batch")}
    trial = Trial(settings, case.platform, case.overrides, intervals=False)
    row = evaluate(document, trial, case.name, platform_of(case.platform, case.overrides, site))
    return Candidate(case, row if row.priced else None)


def group_regret(name: str, members: Sequence[Candidate]) -> GroupRegret | None:
    """The regret of one group; None where nothing of it ran or nothing can be ranked."""
    ran = [c for c in members if c.case.measured_ms is not None]
    by_row = {id(c.row): c for c in members if c.row is not None}
    order = [by_row[id(row)] for row in ranked([c.row for c in members if c.row is not None])]
    those_that_ran = [c for c in order if c.case.measured_ms is not None]
    if not those_that_ran:
        return None
    best = min(ran, key=_ms)
    pick = those_that_ran[0]
    of_top = [c for c in order[:TOP] if c.case.measured_ms is not None] or [pick]
    return GroupRegret(
        group=name,
        candidates=len(members),
        ran=len(ran),
        best=best.case.name,
        best_ms=_ms(best),
        pick=pick.case.name,
        pick_ms=_ms(pick),
        predicted_ms=pick.row.step_time_us / 1e3 if pick.row else 0.0,
        regret=_ms(pick) / _ms(best) - 1,
        top_regret=min(map(_ms, of_top)) / _ms(best) - 1,
        crashed=order[0].case.measured_ms is None,
    )


def _ms(c: Candidate) -> float:
    return c.case.measured_ms or float("inf")


def file_regret(file: str, candidates: Sequence[Candidate]) -> FileRegret:
    """The regret of every group of cases."""
    together: dict[str, list[Candidate]] = {}
    for c in candidates:
        together.setdefault(c.case.group, []).append(c)
    each = [found for name, members in together.items() if (found := group_regret(name, members))]
    n = max(len(each), 1)
    return FileRegret(
        file,
        len(each),
        sum(g.regret for g in each) / n,
        sum(g.top_regret for g in each) / n,
        sum(g.crashed for g in each) / n,
        tuple(each),
    )
