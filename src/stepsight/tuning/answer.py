"""The answer to act on: the best, what cannot be distinguished from it, its neighbours, the Pareto front.

Where nothing fits: by how much, and which changes make room. Every change that is named was tried.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepsight.errors import InputError, StepsightError
from stepsight.platform.load import Platform
from stepsight.prediction.breakdown import EXPOSED, IDLE, WAITING
from stepsight.prediction.display import look
from stepsight.prediction.memory import fit_probability
from stepsight.records import assigned
from stepsight.tables.sharders import SEARCHED
from stepsight.terminal import counted
from stepsight.tuning.dimensions import LANGUAGE, Model, default_dimensions, short_names
from stepsight.tuning.evaluate import peak_bytes
from stepsight.tuning.search import SURE, ranked, score
from stepsight.tuning.space import Space, space
from stepsight.tuning.trial import FAILED, ILLEGAL, Row, Setting, frameworks_of, setting_text
from stepsight.workload.fields import ALIASES


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A configuration that differs from the best in one dimension by one value.

    ``slower`` is how much more it takes of the objective, ``None`` where it was not priced.
    """

    dimension: str
    value: Setting
    row: Row
    slower: float | None


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """What a search found.

    ``top`` are the best with their intervals, of those that fit with a probability of ``min_fit``; ``ties``
    all others of them that are too close to the best to call, in the table or not. ``maybe`` is the one
    below that (`MAYBE` at least) with the largest expected gain, where one beats the best. ``front`` is the
    Pareto front of time, memory and cost. ``counts`` say what became of the candidates; ``document`` is the
    workload into which a row's settings are put. ``tokens`` are those of the whole run, where they are
    known.
    """

    workload: str
    platform: str
    objective: str
    top: tuple[Row, ...]
    ties: tuple[Row, ...]
    maybe: Row | None
    neighbours: tuple[Neighbour, ...]
    front: tuple[Row, ...]
    rows: tuple[Row, ...]
    counts: Mapping[str, int]
    refused: Mapping[str, int]
    dimensions: Mapping[str, tuple[Setting, ...]]
    document: Mapping[str, Any]
    seconds: float = 0.0
    assignments: tuple[str, ...] = ()
    min_fit: float = SURE
    tokens: float | None = None

    def predict_line(self, row: Row) -> str:
        """The command that predicts a row: what ``stepsight predict`` states (``stepsight shard`` for a
        plan that is searched for) is what the search ranks by."""
        training = self.document.get("training") or {}
        stated = {"global_batch": self.document.get("global_batch"),
                  **{f"training.{key}": training.get(key) for key in ("framework", "recipe")},
                  **{ALIASES.get(key, key): value for key, value in assigned(self.assignments)},
                  **row.settings}  # fmt: skip
        settings = {
            path: str(value).lower() if isinstance(value, bool) else str(value)
            for path, value in stated.items()
            if value is not None
        }
        command = "predict"
        if settings.get("parallel.sharding") == SEARCHED:
            command = "shard"
            del settings["parallel.sharding"]
        sets = " ".join(f"--set {shlex.quote(f'{SHORT_NAMES.get(k, k)}={v}')}" for k, v in settings.items())
        return (
            f"stepsight {command} {shlex.quote(self.workload)} -p {shlex.quote(row.platform)} {sets}".rstrip()
        )

    def __repr__(self) -> str:
        return f"<Answer {self.workload} on {self.platform}: {settings_text(self.best.settings)}>"

    @property
    def best(self) -> Row:
        return self.top[0]

    @property
    def framework(self) -> str:
        """The one that all configurations assume; empty where they differ or have none."""
        named = frameworks_of(self.rows)
        return named[0] if len(named) == 1 else ""

    @property
    def failures(self) -> dict[str, int]:
        """Why configurations that looked legal have no time, and how many each reason cost."""
        return dict(Counter(r.reason for r in self.rows if r.status in (ILLEGAL, FAILED)))

    def records(self) -> list[dict[str, Any]]:
        """All rows, flat, as a DataFrame takes them."""
        return [row.record() for row in self.rows]


def front(rows: Sequence[Row]) -> list[Row]:
    """Rows that no other beats in time a sample, memory and cost at once, fastest first."""
    candidates = sorted(
        (r for r in rows if r.priced and r.fit >= SURE), key=lambda r: (score(r, "time"), r.memory_gb)
    )
    kept: list[Row] = []
    for row in candidates:
        mine = _goals(row)
        if not any(all(a <= b for a, b in zip(_goals(k), mine, strict=True)) for k in kept):
            kept.append(row)
    return kept


def _goals(row: Row) -> tuple[float, float, float]:
    return score(row, "time"), row.memory_gb, score(row, "cost")


def neighbours(
    best: Row, rows: Sequence[Row], dimensions: Mapping[str, Sequence[Setting]], objective: str
) -> list[Neighbour]:
    """For every dimension the nearest values up and down that were tried, all else as in the best; data
    parallelism follows from the rest."""

    def value_of(row: Row, path: str) -> Setting:
        return row.settings.get(path, dimensions[path][0])

    near: dict[tuple[str, Setting], list[Row]] = {}
    for row in rows:
        changed = [path for path in dimensions if value_of(row, path) != value_of(best, path)]
        if len(changed) == 1 and row.ranks in (best.ranks, 0):  # what was not priced may not know them
            near.setdefault((changed[0], value_of(row, changed[0])), []).append(row)
    found = []
    for path, values in dimensions.items():
        here = value_of(best, path)
        listed = [value for value in dict.fromkeys(values) if value == here or (path, value) in near]
        at = listed.index(here) if here in listed else 0
        for value in listed[max(0, at - 1) : at + 2]:
            if value != here:
                row = min(near[path, value], key=lambda r: (not r.priced, score(r, objective)))
                slower = score(row, objective) / score(best, objective) - 1 if row.priced else None
                found.append(Neighbour(path, value, row, slower))
    return found


def why(row: Row, best: Row) -> str:
    """Where a configuration differs from the best, in % of the best step; of the best, what it loses."""
    if row is best or row == best:
        losses = {n: s for n, s in row.shares.items() if n.startswith("exposed") or n in (WAITING, IDLE)}
        listed = sorted(losses.items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(
            f"{100 * share:.0f} % {part_word(name)}" for name, share in listed if share >= 0.005
        )
        return f"lost: {parts}" if parts else "compute only"
    per_row, per_best = score(row, "time"), score(best, "time")
    names = dict.fromkeys((*row.shares, *best.shares))
    more = {n: row.shares.get(n, 0.0) * per_row / per_best - best.shares.get(n, 0.0) for n in names}
    worse = sorted(((n, d) for n, d in more.items() if d > 0.003), key=lambda item: -item[1])[:2]
    better = sorted(((n, d) for n, d in more.items() if d < -0.003), key=lambda item: item[1])[:1]
    text = ", ".join(
        f"{part_word(name)} {'+' if d > 0 else '−'}{abs(100 * d):.1f} %" for name, d in worse + better
    )
    return text or "no difference by category"


AXES = {"shard": "FSDP/ZeRO", "data": "data-parallel", "tensor": "tensor-parallel", "pipeline": "pipeline",
        "context": "context-parallel", "expert": "expert-parallel", "expert data": "expert-gradient",
        "copies": "hybrid-sharding", "world": "gradient-norm"}  # fmt: skip
"""Whose communication is exposed."""


def part_word(name: str) -> str:
    """A part of the step in words that can stand in a list."""
    if name.startswith("exposed "):
        axis = name.removeprefix("exposed ")
        return f"exposed {AXES.get(axis, axis)} communication"
    words = {EXPOSED: "exposed communication", IDLE: "waiting for the host"}
    return words.get(name) or look(name).word


def settings_text(settings: Mapping[str, Setting]) -> str:
    """``tp 4, pp 2, zero 1``."""
    names = short_names(settings)
    return ", ".join(f"{names[path]} {setting_text(value)}" for path, value in settings.items())


SHORT_NAMES = {path: name for name, path in ALIASES.items()}


def best_rows(rows: Sequence[Row], objective: str, top: int, min_fit: float = SURE) -> list[Row]:
    """The best that fit with this probability; none where none does."""
    return [r for r in ranked(rows, objective, min_fit) if r.fit >= min_fit][:top]


MOST_GPUS = 4096
"""This many are tried at most."""
LEAN: dict[str, list[Setting] | None] = {
    "parallel.tensor": None, "parallel.pipeline": None, "parallel.zero": None, "parallel.micro_batch": [1],
    "training.recompute": ["full"],
}  # fmt: skip
"""The part of a language model's space that needs the least memory."""
ALONE: tuple[tuple[str, tuple[Setting, ...]], ...] = (
    ("training.recompute", ("selective", "full")), ("parallel.zero", (1, 2, 3)),
    ("parallel.micro_batch", (1,)),
)  # fmt: skip
"""Single changes that are tried, gentlest first."""


def no_candidates(found: Space, counts: Sequence[int], *, over: bool) -> InputError:
    """What to say if no combination is valid: of values that were asked for, or on this many GPUs."""
    reasons = ", ".join(f"{reason} ({counted(n, 'time')})" for reason, n in list(found.refused.items())[:3])
    problem = f"no valid configuration: {reasons or 'there is nothing to combine'}"
    if over:
        return InputError("--over", problem, "widen the space")
    gpus, batch = max(counts), found.document.get("global_batch")
    where = counted(gpus, "GPU")
    if not isinstance(batch, int) or batch < 1:
        return InputError(where, problem, "ask for another number with --gpus")
    fewer = max(n for n in range(1, gpus + 1) if batch % n == 0)
    return InputError(
        where,
        f"{problem}; the global batch is {batch}",
        f"ask for --gpus {fewer}, or a --global-batch in multiples of {gpus}",
    )


def nothing_fits(least: Row) -> str:
    """By how much the smallest configuration does not fit."""
    over = least.memory_gb - least.usable_gb
    amount = f"{over:.1f} GB too much" if over > 0 else "too close to the limit to be sure"
    return (
        f"nothing fits: the smallest ({settings_text(least.settings)}) needs {least.memory_gb:.1f} GB of "
        f"{least.usable_gb:.1f} GB usable, {amount}"
    )


def what_would_fit(
    least: Row, given: Mapping[str, Any], found: Space, platform: Platform, global_batch: int | None
) -> str:
    """Changes of the smallest configuration, else more GPUs. ``given`` is the workload as it was described:
    a batch that it leaves open grows with the GPUs."""
    helps = list(_alone(least, found, platform))
    return f"this would: {', or '.join(helps) or _together(least, given, platform, global_batch)}"


def _alone(least: Row, found: Space, platform: Platform) -> Iterator[str]:
    """One change of the smallest configuration that makes it fit, for each field that has one."""
    if found.document.get("kind") == "dlrm":
        return
    piped = least.settings.get("parallel.pipeline", 1) != 1
    for path, values in ALONE:
        for value in values:
            if piped and path == "parallel.zero" and value in (2, 3):
                continue
            memory_gb = _fitting_gb(found.document, {**least.settings, path: value}, platform)
            if memory_gb:
                yield f"{settings_text({path: value})} ({memory_gb:.0f} GB)"
                break


def _together(least: Row, given: Mapping[str, Any], platform: Platform, global_batch: int | None) -> str:
    """The fewest GPUs on which something fits, twice as many at a time, with all that saves memory; with one
    sequence per GPU where the batch is too small to be shared out."""
    if given.get("kind") == "dlrm":
        for gpus in _doubled(least.ranks):
            if memory_gb := _fitting_gb(given, {"parallel.ranks": gpus}, platform):
                return f"{_where(gpus, least)} ({memory_gb:.0f} GB)"
        return "tables cut in parts or in half precision (stepsight shard), or GPUs with more memory"
    for larger_batch in (False, True):
        for gpus in _doubled(least.ranks):
            batch = gpus if larger_batch else global_batch
            for document, settings in _lean(given, gpus, platform.spec.gpus_per_node, batch):
                if memory_gb := _fitting_gb(document, settings, platform):
                    more = f" and --global-batch {batch}" if larger_batch else ""
                    words = f"{_where(gpus, least)}{more} with {settings_text(settings)}"
                    return f"{words} ({memory_gb:.0f} GB)"
    return f"nothing that was tried on up to {MOST_GPUS:,} GPUs; take GPUs with more memory"


def _doubled(gpus: int) -> Iterator[int]:
    gpus = max(1, gpus)
    while gpus <= MOST_GPUS:
        yield gpus
        gpus *= 2


def _where(gpus: int, least: Row) -> str:
    return "these GPUs" if gpus == least.ranks else f"{gpus:,} GPUs"


def _lean(
    given: Mapping[str, Any], gpus: int, per_node: int, batch: int | None
) -> Iterator[tuple[Mapping[str, Any], dict[str, Setting]]]:
    """Configurations on this many GPUs that need little memory, the least split first."""
    more = set(default_dimensions(Model(given, [gpus], per_node, 0))) - set(LANGUAGE)
    try:
        found = space(
            given, gpus=[gpus], per_node=per_node, global_batch=batch, over={**LEAN, **dict.fromkeys(more)}
        )
    except StepsightError:
        return
    for settings in sorted(found.candidates, key=_splits):
        yield found.document, settings


def _splits(settings: Mapping[str, Setting]) -> tuple[int, int, int]:
    """How much a layout splits: layers and operators, then sequences and experts, and ZeRO's stage."""

    def of(name: str) -> int:
        value = settings.get(f"parallel.{name}", 1)
        return int(value) if isinstance(value, (int, float)) else 1

    return of("tensor") * of("pipeline"), of("context") * of("expert"), -of("zero")


def _fitting_gb(document: Mapping[str, Any], settings: Mapping[str, Setting], platform: Platform) -> float:
    """What the fullest rank needs where that is sure enough to fit; else zero."""
    peak = peak_bytes(document, settings, "tune", platform)
    sure = peak is not None and fit_probability(peak, platform.spec.gpu.usable_bytes) >= SURE
    return peak / 1e9 if sure and peak is not None else 0.0
