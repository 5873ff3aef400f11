"""Every legal configuration, as few of them priced as needed, and the answer in rows."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepsight.errors import InputError
from stepsight.tuning.bound import Bound
from stepsight.tuning.dimensions import RECOMPUTE, STACKS, STAGES, VIRTUAL_STAGES, is_modules
from stepsight.tuning.evaluate import memory_row, platform_of
from stepsight.tuning.journal import Journal
from stepsight.tuning.space import Space
from stepsight.tuning.trial import BOUNDED, Row, Setting, Trial, setting_text
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
"""One that fits with this probability is worth a try where it is faster: a run that does not fit says so.
Below it, nothing is priced."""
BOUNDED_OBJECTIVES = ("time", "cost")
"""Objectives that grow with the step's time alone, so that a bound of the step bounds them."""
MANY_STAGES_GAIN = 1.15
"""More virtual stages than a few are tried where a layout is at most this much slower than the best: they
only shrink what is left of the pipeline bubble."""
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
    least_tokens_per_s: float = 0.0

    def trial(self, settings: Mapping[str, Setting], *, intervals: bool = False) -> Trial:
        least = min(MAYBE, self.min_fit)
        return Trial(settings, self.platform, self.overrides, self.price_per_gpu_hour, least, intervals)


def search(
    found: Space, asked: Search, workers: Workers, journal: Journal, progress: Progress | None = None
) -> list[Row]:
    """A row for every candidate, in the candidates' order."""
    if asked.objective not in OBJECTIVES:
        raise InputError("--objective", f"unknown {asked.objective!r}", f"one of {', '.join(OBJECTIVES)}")
    total, document = len(found.candidates), found.document
    trials = [asked.trial(settings) for settings in found.candidates]
    bounded = asked.bounds and asked.objective in BOUNDED_OBJECTIVES
    rows = _screened(found, asked, trials)
    bounds: dict[int, Row] = {}
    bound = Bound(platform_of(asked.platform, asked.overrides))
    for i in (i for i in range(total) if bounded and i not in rows):
        bounds[i] = bound.row(document, trials[i], asked.where)
        if progress:
            progress(len(rows), total, None)
    order = sorted(set(range(total)) - set(rows), key=lambda i: (*_order(bounds.get(i), asked), i))
    best_of: dict[tuple[object, ...], list[float]] = {}
    fastest: dict[tuple[object, ...], float] = {}
    at = 0
    batch = 2 * KEPT if bounded else max(len(order), 1)
    while at < len(order):
        chosen, at = order[at : at + batch], at + batch
        hopeless = [
            i for i in chosen
            if i in bounds and (_hopeless(bounds[i], best_of.get(_stack(bounds[i]), []), rows, asked)
                                or _far_behind(bounds[i], fastest))
        ]  # fmt: skip
        rows |= {i: _skipped(trials[i], bounds[i].reason, bounds[i].ranks) for i in hopeless}
        open_ = sorted(set(chosen) - set(hopeless))  # neighbours share most
        for index, row in _answered(document, [(i, trials[i]) for i in open_], asked, workers, journal):
            rows[index] = row
            if row.priced:
                layout = _layout(row)
                fastest[layout] = min(score(row, asked.objective), fastest.get(layout, math.inf))
            if row.priced and row.fit >= asked.min_fit and row.tokens_per_s >= asked.least_tokens_per_s:
                best = best_of.setdefault(_stack(row), [])
                heapq.heappush(best, -score(row, asked.objective))
                if len(best) > KEPT:
                    heapq.heappop(best)
            if progress:
                progress(len(rows), total, row)
    return [rows[i] for i in range(total)]


def _stack(row: Row) -> tuple[object, ...]:
    """The framework or recipe of a row where they are compared: each has its own best."""
    return tuple(row.settings.get(path) for path in STACKS)


def _layout(row: Row) -> tuple[object, ...]:
    """A row's settings without those that a layout's rows differ little by."""
    return tuple(value for path, value in row.settings.items() if path not in (RECOMPUTE, STAGES))


def _many_stages(row: Row) -> bool:
    return row.settings.get(STAGES, 1) not in VIRTUAL_STAGES


def _far_behind(least: Row, fastest: Mapping[tuple[object, ...], float]) -> bool:
    """Whether a candidate of many virtual stages, which take long to simulate, has a layout that is slow with
    few of them."""
    if not _many_stages(least) or not fastest:
        return False
    return fastest.get(_layout(least), math.inf) > MANY_STAGES_GAIN * min(fastest.values())


def _order(least: Row | None, asked: Search) -> tuple[bool, bool, float]:
    """The most promising first; then many virtual stages; last what cannot meet the deadline, the fastest
    first."""
    if least is None or not least.step_time_us:
        return False, False, 0.0
    late = least.tokens_per_s < asked.least_tokens_per_s
    return late, _many_stages(least), -least.tokens_per_s if late else score(least, asked.objective)


def _hopeless(least: Row, best: list[float], rows: Mapping[int, Row], asked: Search) -> bool:
    """Whether a candidate's bound shows that it cannot be among the best, or in time. Of candidates that are
    all late the fastest are priced, to say by how much."""
    if not least.step_time_us:
        return False
    if least.tokens_per_s < asked.least_tokens_per_s and any(row.priced for row in rows.values()):
        return True
    return len(best) == KEPT and score(least, asked.objective) > -best[0]


def _screened(found: Space, asked: Search, trials: Sequence[Trial]) -> dict[int, Row]:
    """Of Megatron's kinds of recomputation only the cheapest that fits can be the best of a layout, and only
    the most thorough one the smallest: rows of the others, and of those that do not fit."""
    layouts: dict[tuple[object, ...], list[int]] = {}
    for i, settings in enumerate(found.candidates):
        if settings.get(RECOMPUTE, "selective") != "selective":
            layout = tuple(value for path, value in settings.items() if path != RECOMPUTE)
            layouts.setdefault(layout, []).append(i)
    rows: dict[int, Row] = {}
    for same in layouts.values():
        kinds = [found.candidates[i][RECOMPUTE] for i in same]
        if not set(filter(is_modules, kinds)) & set(found.cheapest_first):
            continue
        if asked.objective == "memory":
            words = f"larger than recompute {setting_text(kinds[-1])}"
            rows |= {i: _skipped(trials[i], words) for i in same[:-1]}
            continue
        for at, i in enumerate(same):
            row = memory_row(found.document, trials[i], asked.where)
            if not row.priced:
                rows[i] = row
            elif row.fit >= asked.min_fit:
                words = f"slower than recompute {setting_text(kinds[at])}, which fits"
                rows |= {j: _skipped(trials[j], words, row.ranks) for j in same[at + 1 :]}
                break
    return rows


def _skipped(trial: Trial, reason: str, ranks: int = 0) -> Row:
    return Row(trial.settings, trial.platform, BOUNDED, ranks=ranks, reason=reason)


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
