"""The answer to act on: the best, which of them are told apart, what lies one step away, the Pareto front."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepsight.prediction.summary import EXPOSED, IDLE, WAITING
from stepsight.tune.dimensions import short_names
from stepsight.tune.search import SURE, ranked, score
from stepsight.tune.trial import FAILED, ILLEGAL, Row, Setting


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

    ``top`` are the best with their intervals; ``ties`` how many of them are within the noise of the first.
    ``maybe`` is the fastest that may not fit, where it is faster than the first. ``front`` is the Pareto
    front of time, memory and cost. ``counts`` say what became of the candidates; ``document`` is the
    workload into which a row's settings are put.
    """

    workload: str
    platform: str
    objective: str
    top: tuple[Row, ...]
    ties: int
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

    @property
    def best(self) -> Row:
        return self.top[0]

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
    """For every dimension the nearest values up and down, all else as in the best where that is possible."""
    found = []
    for path, values in dimensions.items():
        here = best.settings.get(path)
        listed = list(values)
        at = listed.index(here) if here in listed else 0
        for value in dict.fromkeys(listed[max(0, at - 1) : at + 2]):
            if value == here or (here is None and value == listed[0]):
                continue
            near = [r for r in rows if _only(r, best, path, value, dimensions)]
            if near:
                row = min(near, key=lambda r: (not r.priced, score(r, objective)))
                slower = score(row, objective) / score(best, objective) - 1 if row.priced else None
                found.append(Neighbour(path, value, row, slower))
    return found


def _only(
    row: Row, best: Row, path: str, value: Setting, dimensions: Mapping[str, Sequence[Setting]]
) -> bool:
    """The row has that value there and is otherwise as the best; data parallelism follows from the rest."""
    if row.settings.get(path, dimensions[path][0]) != value:
        return False
    return (
        all(
            row.settings.get(p, v[0]) == best.settings.get(p, v[0])
            for p, v in dimensions.items()
            if p != path
        )
        and row.ranks in (best.ranks, 0)  # what was not priced may not know them
    )


def why(row: Row, best: Row) -> str:
    """Where a configuration loses against the best, or what holds the best up, in words."""
    if row is best or row == best:
        losses = {n: s for n, s in row.shares.items() if _loss(n)}
        listed = sorted(losses.items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(f"{_word(name)} {100 * share:.0f} %" for name, share in listed if share >= 0.005)
        return f"loses {parts}" if parts else "nothing but compute"
    per_row, per_best = score(row, "time"), score(best, "time")
    names = dict.fromkeys((*row.shares, *best.shares))
    more = {n: row.shares.get(n, 0.0) * per_row / per_best - best.shares.get(n, 0.0) for n in names}
    worse = sorted(((n, d) for n, d in more.items() if d > 0.003), key=lambda item: -item[1])[:2]
    better = sorted(((n, d) for n, d in more.items() if d < -0.003), key=lambda item: item[1])[:1]
    text = ", ".join(f"{_word(name)} +{100 * d:.1f}" for name, d in worse)
    if better:
        text += (", " if text else "") + ", ".join(f"{_word(name)} −{-100 * d:.1f}" for name, d in better)
    return f"{text} points of the best step" if text else "the same parts"


def _word(name: str) -> str:
    """A part of the step in words that can stand in a list."""
    return {EXPOSED: "exposed communication", WAITING: "waiting for other ranks", IDLE: "host"}.get(
        name, name
    )


def _loss(name: str) -> bool:
    """What is not compute."""
    return name.startswith("exposed") or name in (
        "bubble", "host", EXPOSED, WAITING, IDLE,
    )  # fmt: skip


def settings_text(settings: Mapping[str, Setting]) -> str:
    """``tp 4, pp 2, zero 1``."""
    names = short_names(settings)
    return ", ".join(f"{names[path]} {setting_text(value)}" for path, value in settings.items())


def setting_text(value: Setting) -> str:
    """A setting's value in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def best_rows(rows: Sequence[Row], objective: str, top: int) -> list[Row]:
    """The best that are sure to fit; where none is, the most likely ones."""
    sure = [r for r in ranked(rows, objective) if r.fit >= SURE]
    return sure[:top]
