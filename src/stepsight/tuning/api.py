"""``stepsight.tune`` and ``stepsight.sweep``: the best configuration, and a row for every combination."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from stepsight.capturing.step import is_step_file
from stepsight.errors import InputError
from stepsight.platform.load import Platform
from stepsight.records import assigned, override, read_toml
from stepsight.terminal import counted
from stepsight.tuning.answer import (
    Answer,
    best_rows,
    front,
    neighbours,
    no_candidates,
    nothing_fits,
    what_would_fit,
)
from stepsight.tuning.dimensions import Over, parsed_over
from stepsight.tuning.evaluate import CAPTURED, platform_of
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
from stepsight.tuning.trial import Row, Setting, Trial
from stepsight.tuning.workers import answering
from stepsight.workload.fields import ALIASES, with_full_names
from stepsight.workload.files import is_config, is_name, named, read_config, with_model
from stepsight.workload.llm.config import usual_framework

Model = str | Path | Mapping[str, Any]
"""A file, a name or a document."""
MOST_ROWS = 20_000
"""Rows of a sweep at most."""
ZERO = "parallel.zero"
"""What the usual framework depends on."""
BATCHES = ("global_batch", "batch_per_rank")
"""Two ways to state a language model's batch."""
FRAMEWORK, RECIPE = "training.framework", "training.recipe"


def tune(
    model: Model, platform: str, *, gpus: Sequence[int] = (), global_batch: int | None = None,
    over: Sequence[str] = (), objective: str = "time", top: int = 5,
    price_per_gpu_hour: float | None = None, assignments: Sequence[str] = (), overrides: Sequence[str] = (),
    workers: int = 1, ray: str | None = None, resume: str | Path | None = None, bounds: bool = True,
    least_tokens_per_s: float | None = None, min_fit: float = SURE,
    progress: Progress | None = None,
) -> Answer:  # fmt: skip
    """The best configurations of a workload on a platform, with reasons.

    ``over`` names dimensions (``"tp,pp,zero"``) or gives values (``"zero=0,1"``); by default all that the
    model has. ``least_tokens_per_s`` leaves out what is too slow for a deadline, ``min_fit`` what fits with
    less than this probability (0.5: more likely than not). ``answer.records()`` makes a DataFrame.
    """
    begin = time.perf_counter()
    document, where = described(model, assignments)
    if objective not in OBJECTIVES:
        raise InputError("--objective", f"unknown {objective!r}", f"one of {', '.join(OBJECTIVES)}")
    asked = Search(
        objective, str(platform), tuple(overrides), price_per_gpu_hour, bounds, where, min_fit,
        least_tokens_per_s or 0.0,
    )  # fmt: skip
    varied = parsed_over(over)
    pool: dict[str, Any] = {"workers": workers, "ray": ray, "resume": resume}
    changed = (*assignments, *(f"platform.{one}" for one in overrides))
    if document.get("kind") == CAPTURED:
        if gpus or global_batch:
            given = "--gpus" if gpus else "--global-batch"
            raise InputError(given, "a captured step has its own", "leave it out")
        found, changed = Space(document, (), {}, {path: tuple(v or ()) for path, v in varied.items()}), ()
        rows = _captured_rows(document, asked, over, progress, pool)
        best = best_rows(rows, objective, top, min_fit)
        if not best:
            _refuse(rows, lambda _: "name platforms with more memory, --over platform=A,B")
    else:
        loaded = platform_of(str(platform), tuple(overrides))
        document = of_one_framework(document, varied)
        found = _space_on(loaded, document, asked, gpus, global_batch, varied)
        with answering(found.document, where, **pool) as ask:
            rows = _in_time(search(found, asked, ask, progress), least_tokens_per_s)
            best = best_rows(rows, objective, top, min_fit)
            if not best:
                _refuse(rows, lambda row: what_would_fit(row, document, found, loaded, global_batch))
            best = sorted(with_intervals(best, asked, ask), key=lambda row: score(row, objective))
    answer = _answer(found, asked, rows, best, time.perf_counter() - begin)
    return replace(answer, assignments=changed)


def _captured_rows(
    document: dict[str, Any], asked: Search, over: Sequence[str], progress: Progress | None,
    pool: Mapping[str, Any],
) -> list[Row]:  # fmt: skip
    """A captured step on the platforms, or with the platform's figures, that are asked for."""
    if not over:
        raise InputError(
            asked.where, "a captured step can only be tuned over where it runs",
            "name platforms, --over platform=A,B, or fields of one, --over platform.link.gbps=100,200",
        )  # fmt: skip
    rows = sweep(
        document, asked.platform, over=over, price_per_gpu_hour=asked.price_per_gpu_hour,
        overrides=asked.overrides, progress=progress, **pool,
    )  # fmt: skip
    if "platform" not in parsed_over(over):
        return rows
    return [replace(row, settings={"platform": row.platform, **row.settings}) for row in rows]


def _space_on(
    platform: Platform, document: dict[str, Any], asked: Search, gpus: Sequence[int],
    global_batch: int | None, varied: Over,
) -> Space:  # fmt: skip
    """What is searched on a platform; refused where there is nothing, or the objective cannot be had."""
    if any(path.partition(".")[0] == "platform" for path in varied):
        raise InputError("--over platform", "a search is on one platform", "use stepsight sweep for several")
    if global_batch and document.get("kind") == "dlrm":
        raise InputError("--global-batch", "a DLRM has a batch", "give --over batch=2048,4096")
    stated = dict(varied)
    counts = [*gpus, *(stated.pop("parallel.ranks", None) or ())]
    counts = _gpu_counts(counts, platform.spec.ranks, asked.platform)
    per_node = platform.spec.gpus_per_node
    found = space(document, gpus=counts, per_node=per_node, global_batch=global_batch, over=stated)
    if not found.candidates:
        raise no_candidates(found, counts, over=bool(varied))
    if asked.objective == "cost" and not (asked.price_per_gpu_hour or platform.spec.price_per_gpu_hour):
        fix = "give --price, in money per GPU-hour, or price_per_gpu_hour in the platform's file"
        raise InputError("--objective cost", "needs a price", fix)
    return found


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


def sweep(
    model: Model, platform: str | None = None, *, over: Sequence[str],
    price_per_gpu_hour: float | None = None, assignments: Sequence[str] = (), overrides: Sequence[str] = (),
    workers: int = 1, ray: str | None = None, resume: str | Path | None = None,
    progress: Progress | None = None,
) -> list[Row]:  # fmt: skip
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
    total = len(platforms) * math.prod(len(listed or ()) for listed in values.values())
    if total > MOST_ROWS:
        raise InputError("--over", f"spans {total:,} rows", f"give fewer values (at most {MOST_ROWS:,})")
    combinations = list(product(*(listed or () for listed in values.values())))
    asked = [(name, dict(zip(values, chosen, strict=True))) for name in platforms for chosen in combinations]
    trials = [_swept(settings, name, overrides, price_per_gpu_hour) for name, settings in asked]
    document = _without_rivals(document, values)
    if ZERO in values:
        document = of_one_framework(document, values)
    rows: dict[int, Row] = {}
    with answering(document, where, workers=workers, ray=ray, resume=resume) as ask:
        for i, row in ask(trials):
            rows[i] = row
            if progress:
                progress(len(rows), len(trials), row)
    return [replace(rows[i], settings=settings) for i, (_, settings) in enumerate(asked)]


def _without_rivals(document: dict[str, Any], varied: Mapping[str, object]) -> dict[str, Any]:
    """The document without fields that say otherwise what a varied field says."""
    if "parallel.ranks" in varied and "parallel.data" not in varied:
        document.get("parallel", {}).pop("data", None)
    for one, other in (BATCHES, BATCHES[::-1]):
        if one in varied and other not in varied:
            document.pop(other, None)
    return document


def _swept(
    settings: Mapping[str, Setting], platform: str, overrides: Sequence[str], price: float | None
) -> Trial:
    """Fields of the platform go to the platform, all others to the workload."""
    mine = {k: v for k, v in settings.items() if not k.startswith("platform.")}
    theirs = [f"{k.removeprefix('platform.')}={v}" for k, v in settings.items() if k.startswith("platform.")]
    return Trial(mine, platform, (*overrides, *theirs), price)


def of_one_framework(document: dict[str, Any], varied: Mapping[str, object]) -> dict[str, Any]:
    """The document with a framework named, so that candidates differ in what is varied and in nothing else.

    Without a name each would get what is usual for its ZeRO stage, and its gain would count as ZeRO's.
    """
    training = document.get("training") or {}
    if document.get("kind") != "transformer" or FRAMEWORK in varied or RECIPE in varied:
        return document
    if not isinstance(training, Mapping) or {"framework", "recipe"} & set(training):
        return document
    return {**document, "training": {**training, "framework": usual_framework(document)}}


def described(model: Model, assignments: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """A workload's document and its name: of a file, a config.json, a captured step, or a known model."""
    where = "workload" if isinstance(model, Mapping) else str(model)
    if isinstance(model, Mapping):
        document = dict(model)
    elif is_step_file(Path(model)):
        if assignments:
            raise InputError(f"--set {assignments[0]}", "a captured step has no fields", "capture it again")
        file = Path(model).absolute() if Path(model).exists() else model  # or a shipped step by its name
        return {"kind": CAPTURED, "file": str(file)}, where
    elif is_name(model):
        document = named(str(model))
    else:
        document = read_config(model) if is_config(model) else read_toml(model)
    changes = {ALIASES.get(key, key): value for key, value in assigned(assignments)}
    document = dict(with_model(document))
    if document.get("kind") == "transformer":
        document = with_full_names(document, where)
    if "global_batch" in changes and "batch_per_rank" not in changes:
        document.pop("batch_per_rank", None)
    return override(document, changes, where), where
