"""Ranks: those that did exactly the same at the same time are one row and one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from stepsight.prediction.breakdown import EXPOSED, IDLE, WAITING, RankSummary
from stepsight.prediction.display import look, share, time
from stepsight.report.pieces import Bar, Cell, Fragment, Html, Listing, section
from stepsight.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True)
class RankSet:
    """Ranks that ran the same program with the same times; the first speaks for all. ``number``: of the first
    in the real job, where the timeline shows some of its ranks."""

    ranks: tuple[int, ...]
    number: int | None = None

    @property
    def first(self) -> int:
        return self.ranks[0]

    @property
    def first_of_job(self) -> int:
        """The first rank's number in the real job."""
        return self.first if self.number is None else self.number

    @property
    def label(self) -> str:
        """``rank 3``, ``ranks 0–7``, ``ranks 0, 4, 8 and 13 more``."""
        if len(self.ranks) == 1:
            return f"rank {self.first_of_job:,}"
        if self.ranks == tuple(range(self.first, self.first + len(self.ranks))):
            return f"ranks {self.first:,}–{self.ranks[-1]:,}"
        listed = ", ".join(f"{rank:,}" for rank in self.ranks[:3])
        more = len(self.ranks) - 3
        return f"ranks {listed}" + (f" and {more:,} more" if more > 0 else "")


def identical_ranks(timeline: Timeline) -> list[RankSet]:
    """All ranks, gathered by what they did, in the order of their first."""
    found: dict[tuple[int, int, bytes], list[int]] = {}
    fold = timeline.priced.fold
    for number, (lane, times) in enumerate(zip(timeline.priced.lanes, timeline.times, strict=True)):
        for column, chosen in enumerate(lane.lane.ranks.tolist()):
            rank = fold.first[chosen]
            seen = blake2b(np.array([timeline.begin_us[rank], timeline.end_us[rank]]).tobytes())
            for part in (times.start_us, times.end_us, times.mark_us):
                seen.update(part[:, 0, column].tobytes())
            key = (number, int(lane.lane.program_of_rank[column]), seen.digest())
            found.setdefault(key, []).extend(fold.members(chosen))
    job = timeline.priced.job
    sets = (
        RankSet(tuple(sorted(ranks)), job.number(min(ranks)) if job.numbers else None)
        for ranks in found.values()
    )
    return sorted(sets, key=lambda a: a.first)


def identical_summaries(ranks: Sequence[RankSummary]) -> list[RankSet]:
    """All ranks, gathered by their figures as they are printed (those of a stage, say), in the order of their
    first."""
    found: dict[tuple[str, ...], list[int]] = {}
    for position, one in enumerate(ranks):
        shown = (one.step_us, one.gpu_active_us, one.communication_us, *(us for _, _, us in _split(one)))
        found.setdefault(tuple(map(time, shown)), []).append(position)
    return [RankSet(tuple(positions)) for positions in found.values()]


def most_telling(sets: Sequence[RankSet], ranks: Sequence[RankSummary], most: int) -> list[RankSet]:
    """At most ``most`` of them: the busiest, the least busy, then the first ones, by rank."""
    if len(sets) <= most:
        return list(sets)
    by_compute = sorted(sets, key=lambda a: (-ranks[a.first_of_job].compute_us, a.first))
    wanted = dict.fromkeys([by_compute[0].first, by_compute[-1].first, *(a.first for a in sets)])
    kept = set(list(wanted)[: max(most, 1)])
    return [a for a in sets if a.first in kept]


MOST_BARS = 16
"""Ranks that differ get a bar each up to here; beyond, the few that stand out."""
WAITING_MATTERS = 0.05
"""Waiting below this share of a step is not worth a sentence."""


def rank_section(ranks: Sequence[RankSummary]) -> Html:
    """A bar for each rank that differs; of many, for the few that stand out."""
    sets = identical_summaries(ranks)
    longest = max((r.step_us for r in ranks), default=0.0) or 1.0
    if len(sets) <= MOST_BARS:
        names = [f"all {len(ranks):,}"] if len(sets) == 1 < len(ranks) else [a.label for a in sets]
        named = [(name, ranks[a.first]) for name, a in zip(names, sets, strict=True)]
        return section("Ranks", _bars(named, longest), lead=_lead(sets, ranks))
    by_compute = sorted(ranks, key=lambda r: (r.compute_us, r.rank))
    telling = [
        (f"busiest, rank {by_compute[-1].rank:,}", by_compute[-1]),
        (f"median, rank {by_compute[len(ranks) // 2].rank:,}", by_compute[len(ranks) // 2]),
        (f"least busy, rank {by_compute[0].rank:,}", by_compute[0]),
    ]
    return section("Ranks", _bars(telling, longest), lead=_lead(sets, ranks))


def _lead(sets: Sequence[RankSet], ranks: Sequence[RankSummary]) -> str:
    if len(ranks) == 1:
        return "One rank."
    if len(sets) == 1:
        return f"All {len(ranks):,} ranks do the same at the same time."
    compute = [r.compute_us for r in ranks]
    sentence = (
        f"Compute takes {time(min(compute))} on the least busy rank and {time(max(compute))} on the busiest."
    )
    last = min(ranks, key=lambda r: (r.rank_wait_us, r.rank))
    longest_wait = max(r.rank_wait_us for r in ranks)
    if longest_wait - last.rank_wait_us >= WAITING_MATTERS * last.step_us:
        sentence += f" Rank {last.rank:,} waits least: the others wait for it, up to {time(longest_wait)}."
    return sentence


def _split(r: RankSummary) -> list[tuple[str, str, float]]:
    """A rank's step in four parts that add up to it: word, colour, µs."""
    return [
        ("compute", "compute", r.compute_us),
        (look(EXPOSED).word, "communication", r.exposed_communication_us),
        (look(WAITING).word, "waiting", r.rank_wait_us),
        (look(IDLE).word, "idle", r.idle_us),
    ]


def _bars(named: Sequence[tuple[str, RankSummary]], longest: float) -> Html:
    rows: list[tuple[Cell, ...]] = []
    for name, r in named:
        parts = tuple(
            Fragment(w, us, f"{time(us)}, {share(us / (r.step_us or 1.0))}", c) for w, c, us in _split(r)
        )
        figures = (time(us) for us in (r.step_us, *(us for _, _, us in _split(r))))
        rows.append((name.replace("rank ", "rank\u00a0"), Bar(parts, longest, name), *figures))
    return Listing("", ("rank", "", "step", "compute", "exposed", "waiting", "idle"), rows).html()
