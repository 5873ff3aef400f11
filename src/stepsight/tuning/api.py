"""``stepsight.tune`` and ``stepsight.sweep``: the searches as one call each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from stepsight.errors import InputError
from stepsight.terminal import counted
from stepsight.tuning.answer import Answer, best_rows, front, neighbours
from stepsight.tuning.described import Model, described, of_one_framework
from stepsight.tuning.evaluate import CAPTURED, platform_of
from stepsight.tuning.journal import Journal
from stepsight.tuning.over import parsed_over
from stepsight.tuning.remedies import no_candidates, nothing_fits, what_would_fit
from stepsight.tuning.search import (
    MAYBE,
    OBJECTIVES,
    SURE,
    Progress,
    Search,
    ranked,
    score,
    search,
    with_intervals,
    within_noise,
)
from stepsight.tuning.space import Space, space
from stepsight.tuning.sweep import sweep
from stepsight.tuning.trial import Row, Setting
from stepsight.tuning.workers import workers_of


def tune(
    model: Model,
    platform: str,
    *,
    gpus: Sequence[int] = (),
    global_batch: int | None = None,
    over: Sequence[str] = (),
    objective: str = "time",
    top: int = 5,
    price_per_gpu_hour: float | None = None,
    assignments: Sequence[str] = (),
    overrides: Sequence[str] = (),
    workers: int = 1,
    ray: str | None = None,
    resume: str | Path | None = None,
    bounds: bool = True,
    epoch_samples: int | None = None,
    least_tokens_per_s: float | None = None,
    min_fit: float = SURE,
    progress: Progress | None = None,
) -> Answer:
    """The best configurations of a workload on a platform, with reasons.

    ``over`` names dimensions (``"tp,pp,zero"``) or gives values (``"zero=0,1"``); by default all that the
    model has. ``least_tokens_per_s`` leaves out what is too slow for a deadline, ``min_fit`` what fits with
    less than this probability (0.5: more likely than not). ``answer.records()`` makes a DataFrame.
    """
    begin = time.perf_counter()
    document, where = described(model, assignments)
    if document.get("kind") == CAPTURED:
        if gpus or global_batch:
            raise InputError(
                "--gpus" if gpus else "--global-batch", "a captured step has its own", "leave it out"
            )
        asked = Search(objective, str(platform), tuple(overrides), price_per_gpu_hour, bounds, where, min_fit)
        answer = _captured(document, asked, over, top, workers, ray, resume, progress)
        return replace(answer, seconds=time.perf_counter() - begin, epoch_samples=epoch_samples)
    loaded = platform_of(str(platform), tuple(overrides))
    varied = parsed_over(over)
    if any(path.partition(".")[0] == "platform" for path in varied):
        raise InputError("--over platform", "a search is on one platform", "use stepsight sweep for several")
    if global_batch and document.get("kind") == "dlrm":
        raise InputError("--global-batch", "a DLRM has a batch", "give --over batch=2048,4096")
    document = of_one_framework(document, varied)
    counts = _gpu_counts([*gpus, *(varied.pop("parallel.ranks", None) or ())], loaded.spec.ranks, platform)
    found = space(
        document, gpus=counts, per_node=loaded.spec.gpus_per_node, global_batch=global_batch, over=varied
    )
    if not found.candidates:
        raise no_candidates(found, counts, over=bool(over))
    asked = Search(
        objective, str(platform), tuple(overrides), price_per_gpu_hour, bounds, where, min_fit,
        least_tokens_per_s or 0.0,
    )  # fmt: skip
    if objective == "cost" and not (price_per_gpu_hour or loaded.spec.price_per_gpu_hour):
        fix = "give --price, in money per GPU-hour, or price_per_gpu_hour in the platform's file"
        raise InputError("--objective cost", "needs a price", fix)
    journal = Journal(Path(resume) if resume else None, found.document, where)
    pool = workers_of(workers, ray)
    try:
        rows = _in_time(search(found, asked, pool, journal, progress), least_tokens_per_s)
        best = best_rows(rows, objective, top, min_fit)
        if not best:
            _refuse(rows, lambda row: what_would_fit(row, document, found, loaded, global_batch))
        walked = with_intervals(found.document, best, asked, pool, journal)
        best = sorted(walked, key=lambda row: score(row, asked.objective))
    finally:
        pool.close()
    answer = _answer(found, asked, rows, best, time.perf_counter() - begin)
    changed = (*assignments, *(f"platform.{one}" for one in overrides))
    return replace(answer, epoch_samples=epoch_samples, assignments=changed)


def _in_time(rows: Sequence[Row], least_tokens_per_s: float | None) -> list[Row]:
    """The rows without those that miss the deadline."""
    if least_tokens_per_s is None:
        return list(rows)
    fastest = max((r.tokens_per_s for r in rows if r.priced), default=0.0)
    if 0 < fastest < least_tokens_per_s:
        late = least_tokens_per_s / fastest
        raise InputError(
            "--deadline-days", f"the fastest configuration takes {late:.2f} times as long",
            "ask for more GPUs, or a later deadline",
        )  # fmt: skip
    return [r for r in rows if not r.priced or r.tokens_per_s >= least_tokens_per_s]


def _gpu_counts(asked: Sequence[Setting], most: int, platform: str) -> list[int]:
    """How many GPUs are tried: what was asked for, else all of the platform's."""
    counts = list(dict.fromkeys(int(n) if isinstance(n, (int, float)) else 0 for n in asked))
    for given, count in zip(dict.fromkeys(asked), counts, strict=True):
        if count != given or not 1 <= count <= most:
            wrong = f"{given} of the {counted(most, 'GPU')} of {platform}"
            raise InputError("--gpus", wrong, "ask for 1 to all of them")
    return counts or [most]


def _captured(
    document: dict[str, Any],
    asked: Search,
    over: Sequence[str],
    top: int,
    workers: int,
    ray: str | None,
    resume: str | Path | None,
    progress: Progress | None,
) -> Answer:
    """A captured step is what it is; only where it runs can be chosen."""
    if not over:
        raise InputError(
            asked.where, "a captured step can only be tuned over where it runs",
            "name platforms, --over platform=A,B, or fields of one, --over platform.link.gbps=100,200",
        )  # fmt: skip
    if asked.objective not in OBJECTIVES:
        raise InputError("--objective", f"unknown {asked.objective!r}", f"one of {', '.join(OBJECTIVES)}")
    rows = [
        replace(row, settings=_where(row, over))
        for row in sweep(
            document, asked.platform, over=over, price_per_gpu_hour=asked.price_per_gpu_hour,
            overrides=asked.overrides, workers=workers, ray=ray, resume=resume, progress=progress,
        )
    ]  # fmt: skip
    dimensions = {path: tuple(values or ()) for path, values in parsed_over(over).items()}
    found = Space(document, (), {}, dimensions)
    best = best_rows(rows, asked.objective, top, asked.min_fit)
    if not best:
        _refuse(rows, lambda _: "name platforms with more memory, --over platform=A,B")
    return _answer(found, asked, rows, best, 0.0)


def _where(row: Row, over: Sequence[str]) -> dict[str, Setting]:
    """The settings of a captured step's row: its platform, and the fields of it that were varied."""
    named = {"platform": row.platform} if "platform" in parsed_over(over) else {}
    return {**named, **row.settings}


def _answer(found: Space, asked: Search, rows: list[Row], best: list[Row], seconds: float) -> Answer:
    first = best[0]
    by_settings = {tuple(sorted(map(str, r.settings.items()))): r for r in best}
    merged = tuple(by_settings.get(tuple(sorted(map(str, r.settings.items()))), r) for r in rows)
    unsure = [r for r in rows if r.priced and MAYBE <= r.fit < asked.min_fit]

    def expected_gain(row: Row) -> float:
        return row.fit * (score(first, asked.objective) - score(row, asked.objective))

    maybe = max((r for r in unsure if expected_gain(r) > 0), key=expected_gain, default=None)
    ties = [
        r
        for r in ranked(merged, asked.objective)
        if r.fit >= asked.min_fit and r is not first and within_noise(r, first, asked.objective)
    ]
    return Answer(
        workload=asked.where,
        platform=asked.platform,
        objective=asked.objective,
        top=tuple(best),
        ties=tuple(ties),
        maybe=maybe,
        neighbours=tuple(neighbours(first, merged, found.dimensions, asked.objective)),
        front=tuple(front(merged)),
        rows=merged,
        counts=dict(Counter(r.status for r in merged)),
        refused=found.refused,
        dimensions=found.dimensions,
        document=found.document,
        seconds=seconds,
        min_fit=asked.min_fit,
    )


def _refuse(rows: Sequence[Row], remedy: Callable[[Row], str]) -> NoReturn:
    """Nothing can be recommended: say why, and what would help the smallest configuration."""
    with_memory = [r for r in rows if r.memory_gb > 0]
    if with_memory:
        least = min(with_memory, key=lambda r: r.memory_gb)
        raise InputError("tune", f"{nothing_fits(least)}; {remedy(least)}")
    words = next((r.reason for r in rows if r.reason), "nothing was priced")
    raise InputError("tune", f"no configuration can be predicted: {words}")


__all__ = ["Answer", "described", "sweep", "tune"]
