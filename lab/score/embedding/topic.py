"""Lookups against measurements: GPU kernels and hit rates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from lab.fit.embedding.gpu import MeasuredKernel, predict, predict_left_out
from lab.fit.embedding.points import DDP, DEFAULT, MLPERF, POINTS, measured_kernels
from lab.score.embedding import h100
from lab.score.embedding.lru import lru_hit_rate
from stepsight.errors import InputError
from stepsight.score import BLIND, CHOSEN, FIT, Figure, Score
from stepsight.tables.indices.distributions import IndexDistribution, draw_indices

TOPIC = "embedding"
POINTS_BAR, LISTS_BAR, HIT_BAR = 0.10, 0.08, 0.02
LISTS = (DEFAULT, MLPERF, DDP)
"""The lists of all kernels of a V100's DLRM step, as far as the folder holds them."""
ROWS, LOOKUPS = 20_000, 60_000
CAPACITIES = (20, 100, 500, 2_500, 10_000, 18_000, 40_000)
STREAMS = (
    IndexDistribution.uniform(),
    *(IndexDistribution.zipf(a) for a in (0.8, 0.9, 1.0, 1.1, 1.2, 1.3)),
    IndexDistribution.hot(0.01, 0.9),
    IndexDistribution.hot(0.001, 0.5),
)


def scores(data: Path, rows: str = "heldout") -> list[Score]:
    """GPU kernels and hit rates. ``rows`` "all": none of them took part in the fit."""
    found = [*h100.scores(data), hit_rate_score()]
    try:
        points = measured_kernels(data)
    except InputError as error:
        click.echo(f"skipped: {error}", err=True)
        return found
    return [*gpu_scores(points, fitted=rows != "all"), *found]


def figures(data: Path, each: bool = False) -> dict[str, dict[str, Any]]:
    """What ``--json`` has by file; ``each``: with every row."""
    found = h100.figures(data)
    if found and each:
        found["each"] = h100.each(data)
    return {h100.KEY: found} if found else {}


def gpu_scores(points: Sequence[MeasuredKernel], *, fitted: bool = True) -> list[Score]:
    """By source with the shipped coefficients, and with the source left out of the fit."""
    shipped = predict(points)
    left = predict_left_out(points) if fitted else shipped
    lines = [
        _gpu_score("V100 points", points, shipped, (POINTS,), POINTS_BAR, fitted, BLIND),
        _gpu_score("V100 DLRM lists' lookups", points, shipped, LISTS, LISTS_BAR, fitted, BLIND),
    ]
    if fitted:
        for source in dict.fromkeys(p.source for p in points):
            lines.append(_gpu_score(f"{source}, left out", points, left, (source,), None, False, CHOSEN))
    return lines


def _gpu_score(
    name: str, points: Sequence[MeasuredKernel], predicted: np.typing.NDArray[np.float64],
    sources: tuple[str, ...], bar: float | None, fitted: bool, unseen: str,
) -> Score:  # fmt: skip
    chosen = [i for i, p in enumerate(points) if p.source in sources]
    if not chosen:
        return Score(TOPIC, name, 0, None, None, "not in the folder", exposure=unseen)
    used = "all rows; they took part in the fit" if fitted else "all rows; none took part in the fit"
    measured = [points[i].time_us for i in chosen]
    return Score.of(
        TOPIC, name, predicted[chosen], measured, used, gmae_target=bar, exposure=FIT if fitted else unseen
    )


def hit_rate_score() -> Score:
    """The estimated hit rate against an exact LRU cache, cold and replayed, in absolute difference."""
    wrong = []
    for number, distribution in enumerate(STREAMS):
        stream = draw_indices(distribution, ROWS, LOOKUPS, np.random.default_rng(number)).tolist()
        stats = distribution.stats(ROWS, LOOKUPS)
        for capacity in CAPACITIES:
            for replay in (False, True):
                exact = lru_hit_rate(stream, capacity, replay=replay)
                wrong.append(abs(float(stats.hit_rate(capacity, replay=replay)) - exact))
    worst = max(wrong)
    return Score.reading(
        TOPIC, "hit rate against exact LRU", len(wrong), Figure("mean difference", float(np.mean(wrong))),
        f"{len(STREAMS)} streams × {len(CAPACITIES)} cache sizes, cold and replayed; nothing is fitted",
        target=f"worst ≤ {HIT_BAR:.0%} points", met=worst <= HIT_BAR, note=f"worst {worst:.1%}",
        exposure=CHOSEN,
    )  # fmt: skip
