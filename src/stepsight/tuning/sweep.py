"""``stepsight.sweep``: a row for every combination of values of any field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from stepsight.errors import InputError
from stepsight.tuning.described import Model, described, of_one_framework
from stepsight.tuning.evaluate import CAPTURED
from stepsight.tuning.journal import Journal
from stepsight.tuning.over import parsed_over
from stepsight.tuning.search import Progress
from stepsight.tuning.trial import Row, Setting, Trial
from stepsight.tuning.workers import workers_of

MOST_ROWS = 20_000
"""Rows of a sweep at most."""
ZERO = "parallel.zero"
"""What the usual framework depends on."""
BATCHES = ("global_batch", "batch_per_rank")
"""Two ways to state a language model's batch."""


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
    document = _without_rivals(document, values)
    if ZERO in values:
        document = of_one_framework(document, values)
    journal = Journal(Path(resume) if resume else None, document, where)
    pool = workers_of(workers, ray)
    rows = {i: known for i, trial in enumerate(trials) if (known := journal.get(trial)) is not None}
    left = [i for i in range(len(trials)) if i not in rows]
    try:
        for position, row in pool.run(document, [trials[i] for i in left], where):
            rows[left[position]] = row
            journal.add(trials[left[position]], row)
            if progress:
                progress(len(rows), len(trials), row)
    finally:
        pool.close()
    return [replace(rows[i], settings=one) for i, one in enumerate(settings)]


def _without_rivals(document: dict[str, Any], varied: Mapping[str, object]) -> dict[str, Any]:
    """The document without fields that say otherwise what a varied field says."""
    if "parallel.ranks" in varied and "parallel.data" not in varied:
        document.get("parallel", {}).pop("data", None)
    for one, other in (BATCHES, BATCHES[::-1]):
        if one in varied and other not in varied:
            document.pop(other, None)
    return document


def _swept(
    settings: dict[str, Setting], platform: str, overrides: Sequence[str], price: float | None
) -> Trial:
    """Fields of the platform go to the platform, all others to the workload."""
    mine = {k: v for k, v in settings.items() if not k.startswith("platform.")}
    theirs = [f"{k.removeprefix('platform.')}={v}" for k, v in settings.items() if k.startswith("platform.")]
    return Trial(mine, platform, (*overrides, *theirs), price)
