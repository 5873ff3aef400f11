"""``stepsight.tune`` and ``stepsight.sweep``: the searches as one call each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from stepsight.capture.step.file import is_step_file
from stepsight.errors import InputError
from stepsight.records import nearest, override, read_toml
from stepsight.tune.answer import Answer, best_rows, front, neighbours
from stepsight.tune.dimensions import field_path
from stepsight.tune.evaluate import CAPTURED, platform_of
from stepsight.tune.journal import Journal
from stepsight.tune.search import (
    OBJECTIVES,
    Progress,
    Search,
    nothing_fits,
    ranked,
    score,
    search,
    with_intervals,
    within_noise,
)
from stepsight.tune.space import Space, parsed_over, space
from stepsight.tune.trial import ILLEGAL, Row, Setting, Trial
from stepsight.tune.workers import workers_of
from stepsight.workload.llm.known import is_config, read_config, shipped, shipped_sizes

Model = str | Path | Mapping[str, Any]
MOST_ROWS = 20_000
"""Rows of a sweep at most."""


def described(model: Model, assignments: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """A workload's document and its name: of a file, a config.json, a captured step, or a known model."""
    where = "workload" if isinstance(model, Mapping) else str(model)
    if isinstance(model, Mapping):
        document = dict(model)
    elif not Path(model).exists() and str(model).lower() in shipped():
        document = {"model": str(model)}
    elif Path(model).suffix == ".json" and is_step_file(Path(model)):
        if assignments:
            raise InputError(f"--set {assignments[0]}", "a captured step has no fields", "capture it again")
        return {"kind": CAPTURED, "file": str(Path(model).absolute())}, where
    elif not Path(model).exists() and not Path(model).suffix:
        raise InputError(where, "neither a file nor a known model", nearest(where, shipped()))
    else:
        document = read_config(model) if is_config(model) else read_toml(model)
    name = document.get("model")
    if isinstance(name, str):  # the shipped sizes, under what the document itself says
        rest = {k: v for k, v in document.items() if k != "model"}
        usual = {k: v for k, v in shipped_sizes(name).items() if k not in rest}
        training = {"framework": "megatron", **(rest.get("training") or {})}
        document = {"kind": "transformer", **usual, **rest, "training": training}
    return override(document, assignments, where), where


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
    progress: Progress | None = None,
) -> Answer:
    """The best configurations of a workload on a platform, with reasons.

    ``over`` names dimensions (``"tp,pp,zero"``) or gives values (``"zero=0,1"``); by default all that the
    model has. ``answer.records()`` makes a DataFrame.
    """
    begin = time.perf_counter()
    document, where = described(model, assignments)
    if document.get("kind") == CAPTURED:
        if gpus or global_batch:
            raise InputError(
                "--gpus" if gpus else "--global-batch", "a captured step has its own", "leave it out"
            )
        asked = Search(objective, str(platform), tuple(overrides), price_per_gpu_hour, bounds, where)
        answer = _captured(document, asked, over, top, workers, ray, resume, progress)
        return replace(answer, seconds=time.perf_counter() - begin, epoch_samples=epoch_samples)
    loaded = platform_of(str(platform), tuple(overrides))
    counts = list(gpus) or [loaded.spec.ranks]
    for count in counts:
        if not 1 <= count <= loaded.spec.ranks:
            raise InputError(
                "--gpus", f"{count} of the {loaded.spec.ranks} GPUs of {platform}", "ask for 1 to all of them"
            )
    found = space(
        document, gpus=counts, per_node=loaded.spec.gpus_per_node, global_batch=global_batch,
        over=parsed_over(over),
    )  # fmt: skip
    if not found.candidates:
        raise InputError("--over", f"no legal configuration: {_reasons(found)}", "widen the space")
    asked = Search(objective, str(platform), tuple(overrides), price_per_gpu_hour, bounds, where)
    if objective == "cost" and not (price_per_gpu_hour or loaded.spec.price_per_gpu_hour):
        fix = "give --price, in money per GPU-hour, or price_per_gpu_hour in the platform's file"
        raise InputError("--objective cost", "needs a price", fix)
    journal = Journal(Path(resume) if resume else None)
    pool = workers_of(workers, ray)
    try:
        rows = search(found, asked, pool, journal, progress)
        best = best_rows(rows, objective, top)
        if not best:
            _refuse(rows)
        best = with_intervals(found.document, best, asked, pool, journal)
    finally:
        pool.close()
    answer = _answer(found, asked, rows, best, time.perf_counter() - begin)
    return replace(answer, epoch_samples=epoch_samples)


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
    best = best_rows(rows, asked.objective, top)
    if not best:
        _refuse(rows)
    dimensions = {path: tuple(values or ()) for path, values in parsed_over(over).items()}
    return _answer(Space(document, (), {}, dimensions), asked, rows, best, 0.0)


def _where(row: Row, over: Sequence[str]) -> dict[str, Setting]:
    """The settings of a captured step's row: its platform, and the fields of it that were varied."""
    named = {"platform": row.platform} if "platform" in parsed_over(over) else {}
    return {**named, **row.settings}


def _answer(found: Space, asked: Search, rows: list[Row], best: list[Row], seconds: float) -> Answer:
    first = best[0]
    shown = {id(r): r for r in rows}
    by_settings = {tuple(sorted(map(str, r.settings.items()))): r for r in best}
    merged = tuple(by_settings.get(tuple(sorted(map(str, r.settings.items()))), r) for r in shown.values())
    unsure = [r for r in ranked(rows, asked.objective, sure=0.0) if r.fit < first.fit]
    maybe = next((r for r in unsure if score(r, asked.objective) < score(first, asked.objective)), None)
    ties = sum(within_noise(r, first, asked.objective) for r in merged if r.priced) - 1
    return Answer(
        workload=asked.where,
        platform=asked.platform,
        objective=asked.objective,
        top=tuple(best),
        ties=max(ties, 0),
        maybe=maybe,
        neighbours=tuple(neighbours(first, merged, found.dimensions, asked.objective)),
        front=tuple(front(merged)),
        rows=merged,
        counts=dict(Counter(r.status for r in merged)),
        refused=found.refused,
        dimensions=found.dimensions,
        document=found.document,
        seconds=seconds,
    )


def _reasons(found: Space) -> str:
    listed = ", ".join(f"{reason} ({count:,})" for reason, count in list(found.refused.items())[:3])
    return listed or "there is nothing to combine"


def _refuse(rows: Sequence[Row]) -> None:
    """Nothing can be recommended: say why."""
    with_memory = [r for r in rows if r.memory_gb > 0]
    if with_memory:
        raise InputError("tune", nothing_fits(with_memory))
    reasons = Counter(r.reason for r in rows if r.status == ILLEGAL)
    said = next(iter(reasons), "nothing was priced")
    raise InputError("tune", f"no configuration can be predicted: {said}", "widen the space")


def sweep(
    model: Model,
    platform: str | None = None,
    *,
    over: Sequence[str],
    price_per_gpu_hour: float | None = None,
    assignments: Sequence[str] = (),
    overrides: Sequence[str] = (),
    workers: int = 1,
    ray: str | None = None,
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """A row for every combination of the values given: ``over=["batch=512,1024", "platform=A,B"]``."""
    document, where = described(model, assignments)
    values = parsed_over(over)
    if not values:
        raise InputError("--over", "is missing", "write --over field=a,b,c")
    for path, listed in values.items():
        if listed is None:
            raise InputError(f"--over {path}", "gives no values", f"write --over {path}=a,b,c")
    platforms = [str(p) for p in values.pop("platform", None) or ([platform] if platform else [])]
    if document.get("kind") == CAPTURED and any(not p.startswith("platform.") for p in values):
        raise InputError("--over", "a captured step has no fields", "vary the platform, or fields of it")
    if not platforms:
        raise InputError("--platform", "is missing", "give --platform, or --over platform=A,B")
    total = len(platforms)
    for listed in values.values():
        total *= len(listed or ())
    if total > MOST_ROWS:
        raise InputError("--over", f"spans {total:,} rows", f"give fewer values (at most {MOST_ROWS:,})")
    settings = [
        dict(zip(values, combination, strict=True))
        for _ in platforms
        for combination in product(*(listed or () for listed in values.values()))
    ]
    names = [name for name in platforms for _ in range(len(settings) // len(platforms))]
    trials = [
        _swept(one, name, overrides, price_per_gpu_hour) for one, name in zip(settings, names, strict=True)
    ]
    if "parallel.ranks" in values and "parallel.data" not in values:
        document.get("parallel", {}).pop("data", None)
    journal = Journal(Path(resume) if resume else None)
    pool = workers_of(workers, ray)
    keys = [t.key(document) for t in trials]
    rows = {i: known for i, key in enumerate(keys) if (known := journal.get(key)) is not None}
    left = [i for i in range(len(trials)) if i not in rows]
    try:
        for position, row in pool.run(document, [trials[i] for i in left], where):
            rows[left[position]] = row
            journal.add(keys[left[position]], row)
            if progress:
                progress(len(rows), len(trials), row)
    finally:
        pool.close()
    return [replace(rows[i], settings=one) for i, one in enumerate(settings)]


def _swept(
    settings: dict[str, Setting], platform: str, overrides: Sequence[str], price: float | None
) -> Trial:
    """Fields of the platform go to the platform, all others to the workload."""
    mine = {k: v for k, v in settings.items() if not k.startswith("platform.")}
    theirs = [f"{k.removeprefix('platform.')}={v}" for k, v in settings.items() if k.startswith("platform.")]
    return Trial(mine, platform, (*overrides, *theirs), price)


__all__ = ["Answer", "described", "field_path", "sweep", "tune"]
