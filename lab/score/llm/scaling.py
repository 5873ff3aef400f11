"""How much slower a GPU works in a large job than in a small one of the same configuration."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.score.llm.rows import Outcome, platform_of
from stepsight.documents import to_json
from stepsight.score import CHOSEN, Figure, Score

BAR = 2 / 3
"""Of the pairs: how many predicted slowdowns are closer to the measured one than none at all."""
LARGE_GPUS, LEAST_RATIO = 1024, 8
BY_SIZE = {"": ("global_batch", "batch_per_rank"), "parallel": ("data",)}
"""What grows with a job; everything else that a row states is its configuration."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One configuration on few and on many GPUs. Slowdowns: GPU time per sequence, many over few."""

    name: str
    few: int
    many: int
    measured: float
    predicted: float

    @property
    def closer(self) -> bool:
        return abs(math.log(self.predicted / self.measured)) < abs(math.log(self.measured))


def pairs(rows: Sequence[Outcome]) -> list[Pair]:
    """Every configuration on its fewest and its most GPUs, where these are 1,024 or eight times as many; runs
    that differ in nothing that they state count by their geometric mean."""
    found: dict[str, dict[int, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.timed and not row.case.slow and row.case.platform and row.case.document is not None:
            spec = platform_of(row.case.platform, row.case.overrides, row.case.site).spec
            key = (row.case.source, spec.gpu.name, spec.gpus_per_node, _without_size(row.case.document))
            found[to_json(key)][spec.ranks].append(row)
    return list(_ends(found.values()))


def _ends(configurations: Iterable[Mapping[int, list[Outcome]]]) -> Iterator[Pair]:
    for by_gpus in configurations:
        few, many = min(by_gpus), max(by_gpus)
        if many > few and (many >= LARGE_GPUS or many >= LEAST_RATIO * few):
            measured, predicted = (
                _mean(by_gpus[many], many, part) / _mean(by_gpus[few], few, part) for part in (0, 1)
            )
            yield Pair(by_gpus[few][0].case.name, few, many, measured, predicted)


def _mean(rows: Sequence[Outcome], gpus: int, part: int) -> float:
    """GPU time per sequence: measured (0) or predicted (1)."""
    logs = [
        math.log((row.measured_ms, row.full.step_ms)[part] * gpus / _batch(row.case.document or {}))
        for row in rows
    ]
    return math.exp(sum(logs) / len(logs))


def _batch(document: Mapping[str, Any]) -> float:
    if "global_batch" in document:
        return float(document["global_batch"])
    return float(document["batch_per_rank"] * document["parallel"].get("data", 1))


def _without_size(document: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in document.items() if key not in BY_SIZE[""]}
    parallel = {k: v for k, v in document.get("parallel", {}).items() if k not in BY_SIZE["parallel"]}
    return {**kept, "parallel": parallel}


def scaling_lines(topic: str, by_file: Mapping[str, Sequence[Pair]]) -> list[Score]:
    """The share of pairs that are closer than no slowdown: of all files, those that reach 1,024 GPUs, and of
    each file."""
    found = [pair for pairs_ in by_file.values() for pair in pairs_]
    large = [pair for pair in found if pair.many >= LARGE_GPUS]
    parts: dict[str, tuple[Sequence[Pair], float | None]]
    parts = {"all files": (found, BAR), "all files, to 1,024 GPUs and more": (large, BAR)}
    parts |= {file: (pairs_, None) for file, pairs_ in by_file.items()}
    used = f"configurations on their fewest and most GPUs: 1,024 or {LEAST_RATIO} times as many"
    return [
        Score.reading(
            topic, f"slowdown with more GPUs: {name}", len(some),
            Figure("closer than none", sum(pair.closer for pair in some) / len(some), "more"),
            used, bar=bar, exposure=CHOSEN,
        )
        for name, (some, bar) in parts.items() if some
    ]  # fmt: skip
