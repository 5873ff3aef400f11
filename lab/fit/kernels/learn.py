"""From measured rows to a `LearnedModel`: boosted trees on what the speed of light leaves open."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lab.fit.kernels.anchors import Anchors
from lab.fit.kernels.boost import Settings, boost
from lab.fit.kernels.floors import CLEAR_OF_FLOOR
from lab.fit.kernels.sources import Measured
from stepsight.estimate import FloatArray
from stepsight.kernels.columns import Batch
from stepsight.kernels.learned.features import FEATURES, REACH_BYTES
from stepsight.kernels.learned.model import (
    LIGHT,
    RANGE_KEYS,
    REACH,
    EventPath,
    LearnedModel,
    Provenance,
    base_us,
)
from stepsight.kernels.machine import Machine
from stepsight.score import gmae, mape

FEATURE_SET = {
    "gemm": "gemm", "attention": "attention", "attention_backward": "attention", "conv": "conv",
    "conv_dgrad": "conv", "conv_wgrad": "conv", "softmax": "rows", "softmax_backward": "rows",
    "layer_norm": "rows", "layer_norm_backward": "rows",
}  # fmt: skip

FIT_DATE = "2026-11"
FIRST_PRINCIPLES_WEIGHT = 0.2
"""What a time from first principles counts against a measured one."""
NORMAL_90 = 1.645
"""Standard deviations on either side that hold 90 % of a normal distribution."""
SCORED_ABOVE_US = 60.0
"""Event-timed rows are scored above this (the tables' own note on their floor)."""


def learn(
    measured: Sequence[Measured], machine: Machine, settings: Settings, *,
    path: EventPath | None = None, stacks: tuple[str, ...] = (), anchors: Anchors | None = None,
    hidden: Callable[[Batch, Machine], FloatArray] | None = None, note: str = "", base: str = LIGHT,
) -> LearnedModel:  # fmt: skip
    """Fit one model on the rows that are not held out, and score it on those that are.

    ``hidden`` tells the time of kernels that a row's reading, being at the launch floor, does
    not show; without it such rows are left out.
    """
    first = measured[0]
    family = first.batch.family
    # Where no end of the reach shows, its column serves the table no better and relatives worse (L4, T4).
    spanned = base == REACH and machine.architecture in REACH_BYTES
    features = "linear" if spanned else FEATURE_SET[family]
    path = path or EventPath()
    tables, targets, weights, lows, highs = [], [], [], [], []
    names: tuple[str, ...] = ()
    for part in measured:
        floor_us = path.reading_us(
            np.zeros(len(part.time_us)), path.second_launch(part.batch.dims, machine.sms)
        )
        clear = part.time_us > CLEAR_OF_FLOOR * floor_us
        kernel_us = part.time_us - path.added_us
        if hidden is not None:  # dropping these rows would leave only the slow ones of their size
            most = np.minimum(kernel_us, floor_us - path.added_us)
            kernel_us = np.where(clear, kernel_us, np.minimum(hidden(part.batch, machine), most))
        weight = np.where(clear, 1.0, FIRST_PRINCIPLES_WEIGHT)
        kept = ~part.held_out & (clear if hidden is None else np.ones_like(clear))
        weights.append(weight[kept])
        named = FEATURES[features](part.batch.dims, part.batch.element_bytes, machine)
        ranged = np.stack([named[key] for key in RANGE_KEYS[features]])[:, kept]
        lows.append(ranged.min(axis=1))
        highs.append(ranged.max(axis=1))
        if stacks:
            named["stack"] = np.array([float(stacks.index(s)) for s in part.stacks or ()])
        names = tuple(named)
        tables.append(np.stack(list(named.values()))[:, kept])
        targets.append(np.log(kernel_us / base_us(base, part.batch, machine))[kept])
    if anchors is not None:
        named = FEATURES[features](anchors.batch.dims, anchors.batch.element_bytes, machine)
        tables.append(np.stack([named[key] for key in names]))
        targets.append(np.log(anchors.time_us / base_us(base, anchors.batch, machine)))
        weights.append(np.full(len(anchors.time_us), FIRST_PRINCIPLES_WEIGHT))
        ranged = np.stack([named[key] for key in RANGE_KEYS[features]])
        lows.append(ranged.min(axis=1))
    columns, target = np.concatenate(tables, axis=1), np.concatenate(targets)
    trees = boost(columns, target, settings, np.concatenate(weights))
    model = LearnedModel(
        family=family,
        dtype=first.batch.dtype,
        variant=first.variant,
        features=features,
        columns=names,
        machine=machine,
        trees=trees,
        low=tuple(float(v) for v in np.min(lows, axis=0)),
        high=tuple(float(v) for v in np.max(highs, axis=0)),
        spread=0.0,
        provenance=Provenance("", 0, FIT_DATE, 0, 0.0, 0.0),
        path=path,
        stacks=stacks,
        base=base,
    )
    rows = sum(table.shape[1] for table in tables) - (0 if anchors is None else len(anchors.time_us))
    return _scored(model, measured, rows, note)


def _scored(model: LearnedModel, measured: Sequence[Measured], rows: int, note: str) -> LearnedModel:
    predicted, truth = [], []
    for part in measured:
        above = SCORED_ABOVE_US if part.timed_by_events else 0.0
        shown = part.held_out & (part.time_us > above)
        if not shown.any():
            continue
        dims = {key: column[shown] for key, column in part.batch.dims.items()}
        batch = Batch(part.batch.family, part.batch.dtype, dims, [], np.arange(int(shown.sum())))
        stack = None if part.stacks is None else np.array(part.stacks)[shown].tolist()
        kernel_us, _ = model.time_us(batch, model.machine, stack)
        predicted.append(model.reading_us(batch, kernel_us) if part.timed_by_events else kernel_us)
        truth.append(part.time_us[shown])
    p, t = np.concatenate(predicted), np.concatenate(truth)
    sources = ", ".join(dict.fromkeys(part.source for part in measured))
    return replace(
        model,
        spread=spread_of(np.log(p / t)),
        provenance=Provenance(
            sources, rows, FIT_DATE, len(t), gmae(p, t), mape(p, t), note, fingerprint(measured)
        ),
    )


def spread_of(log_ratio: FloatArray) -> float:
    """The spread whose 90 % interval holds 90 % of the residuals, whatever their tails look like."""
    return float(np.quantile(np.abs(log_ratio), 0.9)) / NORMAL_90


def fingerprint(measured: Sequence[Measured]) -> str:
    """A short name for these readings, whatever their order."""
    times = np.sort(np.concatenate([part.time_us for part in measured]))
    return hashlib.sha256(np.round(times, 3).tobytes()).hexdigest()[:16]
