"""A layer and the ends of a model apart: rows that differ in nothing but the number of layers.

The slope over layers is what one layer takes, its gradients and update included; what is left at none is
the embedding, the head with its loss, and what a step does once. Without tensor parallelism only, where
neither holds communication inside a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.score.llm.rows import Outcome
from stepsight.score import FIT, Score


@dataclass(frozen=True, slots=True)
class Split:
    """One layer and the ends of a configuration in ms: measured, predicted."""

    layer: tuple[float, float]
    ends: tuple[float, float]


def splits(outcomes: Sequence[Outcome]) -> list[Split]:
    """Every configuration without tensor parallelism that was measured with several numbers of layers."""
    identical: dict[str, list[Outcome]] = {}
    for o in outcomes:
        document = o.case.document or {}
        if o.timed and document.get("parallel", {}).get("tensor") == 1:
            key = {**document, "layers": 0}
            identical.setdefault(str(key), []).append(o)
    found = []
    for rows in identical.values():
        layers = np.array([float((o.case.document or {})["layers"]) for o in rows])
        if len(set(layers)) < 2:
            continue
        lines = [
            np.polyfit(layers, times, 1)
            for times in ([o.case.measured_ms or 0.0 for o in rows], [o.full.step_ms for o in rows])
        ]
        (layer, ends), (our_layer, our_ends) = lines
        if ends > 0:
            found.append(Split((float(layer), float(our_layer)), (float(ends), float(our_ends))))
    return found


def layer_scores(file: str, outcomes: Sequence[Outcome]) -> list[Score]:
    """One line for layers, one for the ends; nothing where no rows differ in layers only."""
    found = splits(outcomes)
    if not found:
        return []
    return [
        _score(f"{file}: one layer, no tensor parallelism", [s.layer for s in found]),
        _score(f"{file}: embedding, head and update, no tensor parallelism", [s.ends for s in found]),
    ]


def _score(name: str, pairs: Sequence[tuple[float, float]]) -> Score:
    measured, predicted = [p[0] for p in pairs], [p[1] for p in pairs]
    ratio = float(np.median([p / m for m, p in pairs]))
    note = f"median predicted / measured {ratio:.2f}"
    used = "rows that differ in layers only"
    return Score.of("llm", name, predicted, measured, used, exposure=FIT, note=note)
