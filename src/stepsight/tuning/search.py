"""Every legal configuration, as few of them priced as needed, and the answer in rows."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepsight.errors import InputError
from stepsight.tuning.bound import Bound
from stepsight.tuning.evaluate import platform_of
from stepsight.tuning.journal import Journal
from stepsight.tuning.space import Space
from stepsight.tuning.trial import BOUNDED, Row, Setting, Trial
from stepsight.tuning.workers import Workers

Progress = Callable[[int, int, Row | None], None]
"""Called with trials done, trials in all, and the best row so far."""
OBJECTIVES = ("time", "cost", "energy", "memory")
NOISE = 0.05
"""Two configurations of one model on one platform are distinguished by more than this difference of ln(time):
most errors are common to both and cancel. Chosen, not measured."""
SURE = 0.9
"""A configuration is recommended when it fits with this probability, unless another is asked for. Chosen
in sight of published layouts: with 0.8 two of five picks ran out of memory, with 0.9 none."""
MAYBE = 0.3
"""One that fits with this probability is worth a try where it is faster: a run that does not fit says so."""
LEAST_FIT = 0.05
"""Below this probability to fit, nothing is priced."""
KEPT = 16
"""The bound compares with the best this many: enough for a table of the best and their neighbours."""


def score(row: Row, objective: str) -> float:
    """What is minimised: time, cost or energy per sample, or memory."""
    if objective == "memory":
        return row.memory_gb
    if row.step_time_us <= 0:
        return float("inf")
    samples = row.samples_per_s * row.step_time_us / 1e6 or 1.0  # a captured step does not state them
    if objective == "cost":
        each = row.ranks if row.cost_per_step is None else 1e6 * row.cost_per_step / row.step_time_us
        return each * row.step_time_us / samples
    if objective == "energy":
        return float("inf") if row.energy_j is None else row.energy_j / samples
    return row.step_time_us / samples


def ranked(rows: Sequence[Row], objective: str = "time", sure: float = SURE) -> list[Row]:
    """What has a time, best first: those sure to fit before the others, each by the objective alone."""
    return sorted((r for r in rows if r.priced), key=lambda r: (r.fit < sure, score(r, objective)))


def within_noise(row: Row, best: Row, objective: str) -> bool:
    """Whether the prediction cannot tell two configurations apart."""
    mine, other = score(row, objective), score(best, objective)
    return mine > 0 < other and abs(math.log(mine / other)) < NOISE


@dataclass(frozen=True, slots=True)
class Search:
    """What to search for, and how."""

    objective: str = "time"
    platform: str = ""
    overrides: tuple[str, ...] = ()
    price_per_gpu_hour: float | None = None
    bounds: bool = True
    where: str = "workload"
    min_fit: float = SURE

    def trial(self, settings: Mapping[str, Setting], *, intervals: bool = False) -> Trial:
        return Trial(settings, self.platform, self.overrides, self.price_per_gpu_hour, LEAST_FIT, intervals)


def search(
    found: Space, asked: Search, workers: Workers, journal: Journal, progress: Progress | None = None
) -> list[Row]:
    """A row for every candidate, in the candidates' order."""
    if asked.objective not in OBJECTIVES:
        raise InputError("--objective", f"unknown {asked.objective!r}", f"one of {', '.join(OBJECTIVES)}")
    bound = Bound(platform_of(asked.platform, asked.overrides))
    document = found.document
    bounded = asked.bounds and asked.objective == "time"
    limits = [bound.us(document, c, asked.where) if bounded else 0.0 for c in found.candidates]
    order = sorted(range(len(limits)), key=lambda i: (limits[i] / _samples(found, i), i))
    rows: dict[int, Row] = {}
    best: list[float] = []
    at = 0
    batch = 2 * KEPT if bounded else max(len(order), 1)
    while at < len(order):
        chosen, at = order[at : at + batch], at + batch
        chosen = sorted(_worth(chosen, limits, best, rows, asked, found))  # neighbours share most
        for index, row in _answered(
            document, [(i, asked.trial(found.candidates[i])) for i in chosen], asked, workers, journal
        ):
            rows[index] = row
            if row.priced and row.fit >= asked.min_fit:
                heapq.heappush(best, -score(row, "time"))
                if len(best) > KEPT:
                    heapq.heappop(best)
            if progress:
                progress(len(rows), len(order), row)
    return [rows[i] for i in range(len(order))]


def _worth(
    chosen: list[int],
    limits: Sequence[float],
    best: list[float],
    rows: dict[int, Row],
    asked: Search,
    found: Space,
) -> list[int]:
    """Those that may still be among the best; the others get a row that says so."""
    if len(best) < KEPT:
        return chosen
    worst_us = -best[0]
    kept = []
    for i in chosen:
        if limits[i] <= worst_us * _samples(found, i):
            kept.append(i)
        else:
            words = f"takes at least {limits[i] / 1e3:.1f} ms"
            rows[i] = Row(found.candidates[i], asked.platform, BOUNDED, reason=words)
    return kept


def _samples(found: Space, i: int) -> float:
    """Samples of a candidate's step; the bound is known for language models only, which state them."""
    return float(found.candidates[i].get("global_batch", found.document.get("global_batch", 1)))


def _answered(
    document: Mapping[str, Any], trials: Sequence[tuple[int, Trial]], asked: Search, workers: Workers,
    journal: Journal,
) -> Iterator[tuple[int, Row]]:  # fmt: skip
    """Known answers first, then the others as they come."""
    open_ = []
    for i, trial in trials:
        known = journal.get(trial)
        if known is not None:
            yield i, known
        else:
            open_.append((i, trial))
    for position, row in workers.run(document, [t for _, t in open_], asked.where):
        index, trial = open_[position]
        journal.add(trial, row)
        yield index, row


def with_intervals(
    document: Mapping[str, Any], rows: Sequence[Row], asked: Search, workers: Workers, journal: Journal
) -> list[Row]:
    """The same rows with the step's interval."""
    trials = [(i, asked.trial(row.settings, intervals=True)) for i, row in enumerate(rows)]
    answered = dict(_answered(document, trials, asked, workers, journal))
    return [answered[i] if answered[i].priced else rows[i] for i in range(len(rows))]
