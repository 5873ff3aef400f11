"""Every legal configuration, as few of them priced as needed, and the answer in rows.

A configuration is skipped when the least it can take is above what is already found: its stages' kernels and
the collectives that compute waits for. No prediction lies below that bound: clocks are at their boost, the
host takes no time, and what may overlap with compute does so for nothing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepsight.collectives.roofline import worst_placed
from stepsight.errors import StepsightError
from stepsight.platform.load import Platform
from stepsight.tuning.dimensions import RECOMPUTE, STACKS, STAGES, VIRTUAL_STAGES, is_modules
from stepsight.tuning.evaluate import costed, memory_row, platform_of, workload_of
from stepsight.tuning.space import Space
from stepsight.tuning.trial import BOUNDED, Row, Setting, Trial, setting_text
from stepsight.tuning.workers import Ask
from stepsight.workload.llm.block import Pass
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.emission import Emitter
from stepsight.workload.llm.pieces import Pieces
from stepsight.workload.llm.pipeline import pieces
from stepsight.workload.llm.workload import LanguageWorkload

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


def search(found: Space, asked: Search, ask: Ask, progress: Progress | None = None) -> list[Row]:
    """A row for every candidate, in the candidates' order."""
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
                                or _much_slower(bounds[i], fastest))
        ]  # fmt: skip
        rows |= {i: _skipped(trials[i], bounds[i].reason, bounds[i].ranks) for i in hopeless}
        open_ = sorted(set(chosen) - set(hopeless))  # neighbours share most
        for position, row in ask([trials[i] for i in open_]):
            rows[open_[position]] = row
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


def _much_slower(least: Row, fastest: Mapping[tuple[object, ...], float]) -> bool:
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


def with_intervals(rows: Sequence[Row], asked: Search, ask: Ask) -> list[Row]:
    """The same rows with the step's interval."""
    answered = dict(ask([asked.trial(row.settings, intervals=True) for row in rows]))
    return [answered[i] if answered[i].priced else row for i, row in enumerate(rows)]


class Bound:
    """Lower bounds on one platform; configurations share most of their passes, which are priced once."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self._known: dict[tuple[object, ...], float] = {}

    def row(self, document: Mapping[str, Any], trial: Trial, where: str) -> Row:
        """A trial's row with a lower bound of the step; without a time where nothing is known about the
        workload."""
        row = Row(trial.settings, trial.platform, BOUNDED)
        if document.get("kind") == "dlrm":
            return row
        try:
            workload = workload_of(document, trial.settings, where, self.platform)
            if not isinstance(workload, LanguageWorkload) or workload.eager is not None:
                return row
            c = workload.config
            us = self.language_us(c)
        except StepsightError:
            return row
        tokens_per_s = 1e6 * c.tokens_per_step / us
        timed = replace(
            row, ranks=c.ranks, step_time_us=us, samples_per_s=tokens_per_s / c.sequence,
            tokens_per_s=tokens_per_s, reason=f"takes at least {us / 1e3:.1f} ms",
        )  # fmt: skip
        return costed(timed, trial, self.platform)

    def language_us(self, c: LanguageConfig) -> float:
        """The fullest stage's passes, and the bubble that a schedule cannot avoid."""
        s, maker = c.layout, Pieces(c, 1)
        spans = {a: worst_placed(ranks, self.platform.spec) for a, ranks in Emitter(c).spans.items()}
        works = [maker.work(piece) for piece in pieces(c)]
        each = [sum(self._pass_us(run.work, spans) for run in (*w.forward, *w.backward)) for w in works]
        stages = [sum(each[stage :: s.pipeline]) for stage in range(s.pipeline)]
        bubble = 0.0 if s.schedule == "zero_bubble" else (s.pipeline - 1) / s.virtual_stages
        return s.micro_batches * max(stages) + bubble * min(stages)

    def _pass_us(self, work: Pass, spans: Mapping[str, tuple[int, ...]]) -> float:
        """Kernels one after the other, and messages that nothing overlaps with."""
        waited = {m: n for m, n in work.messages.items() if not m.concurrent and not m.hidden}
        key = (work, *(spans[axis] for axis in dict.fromkeys(m.axis for m in waited)))
        if key not in self._known:
            conditions = self.platform.conditions
            known = conditions.known_kernels(work.kernels)
            us = sum(n * known[kernel].estimate.time_us for kernel, n in work.kernels.items())
            for m, n in waited.items():
                us += n * conditions.collective(m.axis, m.kind, m.bytes, spans[m.axis], m.copies).time_us
            self._known[key] = us
        return self._known[key]
