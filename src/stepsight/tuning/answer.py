"""The answer to act on: the best, which of them are distinguished, what lies one step away, the Pareto
front."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepsight.prediction.breakdown import EXPOSED, IDLE, WAITING
from stepsight.prediction.display import look
from stepsight.records import assigned
from stepsight.tables.sharders import SEARCHED
from stepsight.tuning.dimensions import short_names
from stepsight.tuning.search import SURE, ranked, score
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


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search found.

    ``top`` are the best with their intervals, of those that fit with a probability of ``min_fit``; ``ties``
    all others of them that are too close to the best to call, in the table or not. ``maybe`` is the one
    below that (`MAYBE` at least) with the largest expected gain, where one beats the best. ``front`` is the
    Pareto front of time, memory and cost. ``counts`` say what became of the candidates; ``document`` is the
    workload into which a row's settings are put.
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
    epoch_samples: int | None = None
    assignments: tuple[str, ...] = ()
    min_fit: float = SURE

    def predict_line(self, row: Row) -> str:
        """The command that predicts a row: what ``stepsight predict`` states (``stepsight shard`` for a
        plan that is searched for) is what the search ranks by."""
        training = self.document.get("training") or {}
        stated = {"global_batch": self.document.get("global_batch"),
                  **{f"training.{key}": training.get(key) for key in ("framework", "recipe")},
                  **{ALIASES.get(key, key): value for key, value in assigned(self.assignments)},
                  **row.settings}  # fmt: skip
        settings = {path: setting_value(value) for path, value in stated.items() if value is not None}
        command = "predict"
        if settings.get("parallel.sharding") == SEARCHED:
            command = "shard"
            del settings["parallel.sharding"]
        sets = " ".join(f"--set {shlex.quote(f'{SHORT_NAMES.get(k, k)}={v}')}" for k, v in settings.items())
        return (
            f"stepsight {command} {shlex.quote(self.workload)} -p {shlex.quote(row.platform)} {sets}".rstrip()
        )

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
        losses = {n: s for n, s in row.shares.items() if _loss(n)}
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


def _loss(name: str) -> bool:
    """What is not compute."""
    return name.startswith("exposed") or name in (EXPOSED, WAITING, IDLE)


def settings_text(settings: Mapping[str, Setting]) -> str:
    """``tp 4, pp 2, zero 1``."""
    names = short_names(settings)
    return ", ".join(f"{names[path]} {setting_text(value)}" for path, value in settings.items())


SHORT_NAMES = {path: name for name, path in ALIASES.items()}


def setting_value(value: Setting) -> str:
    """As ``--set`` reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def best_rows(rows: Sequence[Row], objective: str, top: int, min_fit: float = SURE) -> list[Row]:
    """The best that fit with this probability; none where none does."""
    return [r for r in ranked(rows, objective, min_fit) if r.fit >= min_fit][:top]
