"""From measured rows to a `LearnedModel`: boosted trees on what the speed of light leaves open."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.fit.kernels.boost import Settings, boost
from lab.fit.kernels.events import model_reading_us, output_tiles, path_reading_us
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
    light_us,
)
from stepsight.kernels.machine import Machine
from stepsight.kernels.stream_costs import STREAMS
from stepsight.kernels.streams import Streamed
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
    hidden: Callable[[Batch, Machine], FloatArray] | None = None, base: str = LIGHT,
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
        floor_us = path_reading_us(path, np.zeros(len(part.time_us)), part.batch.dims, machine.sms)
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
    return _scored(model, measured, rows)


def _scored(model: LearnedModel, measured: Sequence[Measured], rows: int) -> LearnedModel:
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
        predicted.append(model_reading_us(model, batch, kernel_us) if part.timed_by_events else kernel_us)
        truth.append(part.time_us[shown])
    p, t = np.concatenate(predicted), np.concatenate(truth)
    sources = ", ".join(dict.fromkeys(part.source for part in measured))
    return replace(
        model,
        spread=spread_of(np.log(p / t)),
        provenance=Provenance(
            sources, rows, FIT_DATE, len(t), gmae(p, t), mape(p, t), fingerprint=fingerprint(measured)
        ),
    )


def spread_of(log_ratio: FloatArray) -> float:
    """The spread whose 90 % interval holds 90 % of the residuals, whatever their tails look like."""
    return float(np.quantile(np.abs(log_ratio), 0.9)) / NORMAL_90


def fingerprint(measured: Sequence[Measured]) -> str:
    """A short name for these readings, whatever their order."""
    times = np.sort(np.concatenate([part.time_us for part in measured]))
    return hashlib.sha256(np.round(times, 3).tobytes()).hexdigest()[:16]


START_US = 3.0
PER_K_US = 0.010
"""A thread block walks the whole of k: 3–5 µs at k = 16, 6–12 µs at k = 256–512, 19–25 µs at
k = 1000–2048 for single-wave fp32 GEMMs on V100 (trace_kernels.parquet, v100_addmm_small.csv)."""
SPLIT_K = 1200.0
"""Beyond about this depth the library splits k over more thread blocks."""
ARITHMETIC = 0.5
"""Share of peak that small tiles reach: 0.50–0.56 for 27–68 µs GEMMs of the V100 DLRM lists."""
COUNT = 500


@dataclass(frozen=True, slots=True)
class Anchors:
    """Shapes below the reach of the measurement, with times from first principles."""

    batch: Batch
    time_us: FloatArray


def small_gemm_us(batch: Batch, machine: Machine) -> FloatArray:
    """The time of a GEMM too small to be seen above the launch path."""
    depth = np.minimum(batch.dims["k"], SPLIT_K)
    return START_US + PER_K_US * depth + light_us(batch, machine) / ARITHMETIC


def gemm_anchors(
    machine: Machine, floor_us: float, batched: bool, seed: int, most: Mapping[str, float] | None = None
) -> Anchors:
    """Random small shapes whose time lies well below the measurement floor.

    ``most``: the largest measured sizes. Beyond them these shapes would be all that the trees know, and
    large products with such a size would be timed as small ones.
    """
    limits = {"m": 1024.0, "n": 1024.0, "k": 2048.0, "batch": 128.0}
    limits = {key: min(high, (most or {}).get(key, high)) for key, high in limits.items()}
    rng = np.random.default_rng(seed)
    draw = 8 * COUNT

    def sizes(high: float) -> np.typing.NDArray[np.float64]:
        return np.floor(np.exp(rng.uniform(0.0, np.log(high), draw)))

    dims = {key: sizes(limits[key]) for key in ("m", "n", "k")}
    dims["batch"] = sizes(limits["batch"]) if batched else np.ones(draw)
    batch = Batch.of("gemm", "fp32", dims)
    time_us = small_gemm_us(batch, machine)
    small = np.nonzero(time_us < 0.5 * floor_us)[0][:COUNT]
    return Anchors(batch.take(small), time_us[small])


CLEAR_OF_FLOOR = 1.15
"""Rows whose reading is less than this times the launch floor show the host, not the kernel."""
LAUNCHED_AT = 0.5
"""Where in a GEMM operator's host time its kernel is launched: readings of the V100 linear table
exceed the kernels of like shape in the V100 kernel lists by 20–50 µs, its floor is 65 µs."""
HIDDEN = 0.40
"""Products whose time from first principles is below this share of the floor show the host alone."""
MOST = 1.3
"""Readings above this times the floor are no launch, whatever first principles say."""
FEWEST_HIDDEN = 100
DEPTHS = np.array([50.0, 80, 120, 160, 200, 250, 300, 350, 400, 500, 600, 800, 1000])
SLOPES = np.array([0.0, 200, 400, 600, 900, 1200, 1600, 2200, 3000, 4000])
"""Tried limits of k from which a product is split: with no output tile, and more per tile and
multiprocessor."""


def launch_path(batch: Batch, time_us: FloatArray, machine: Machine, *, splits: bool) -> EventPath:
    """The event path of a table of products, read off those too short to show.

    ``splits``: the library splits them along k, which it does not do with batched ones.
    """
    floor = launch_floor(time_us)
    added = LAUNCHED_AT * floor
    hidden = (small_gemm_us(batch, machine) < HIDDEN * floor) & (time_us < MOST * floor)
    if not splits or hidden.sum() < FEWEST_HIDDEN:
        return EventPath(added_us=added, floor_us=floor)
    dims = {key: column[hidden] for key, column in batch.dims.items()}
    reading = np.log(time_us[hidden])
    once = float(np.median(reading))
    best = (float(np.abs(reading - once).sum()), EventPath(added_us=added, floor_us=float(np.exp(once))))
    blocks = output_tiles(dims) / machine.sms
    for depth in DEPTHS:
        for slope in SLOPES:
            split = dims["k"] > depth + slope * blocks
            if min(split.sum(), (~split).sum()) < FEWEST_HIDDEN / 4:
                continue
            one, two = float(np.median(reading[~split])), float(np.median(reading[split]))
            error = float(np.abs(reading - np.where(split, two, one)).sum())
            if two > one and error < best[0]:
                second = float(np.exp(two) - np.exp(one))
                best = (error, EventPath(added, float(np.exp(one)), 1.0, second, float(depth), float(slope)))
    return best[1]


def launch_floor(time_us: FloatArray) -> float:
    """What readings no kernel shows in crowd around: those near the fastest per cent."""
    least = float(np.quantile(time_us, 0.01))
    return float(np.median(time_us[time_us < CLEAR_OF_FLOOR * least]))


def fit_streams(measured: Sequence[Measured], machine: Machine) -> Streamed:
    """One GPU's element-wise ops: ``reading = added + start + bytes / (share × bandwidth)``."""
    start = STREAMS["elementwise"].start_us
    share, path = {}, {}
    predicted, truth = [], []
    for part in measured:
        kept = ~part.held_out
        intercept, slope = _line(part.batch.bytes[kept], part.time_us[kept])
        share[part.variant] = round(1e-3 / (slope * machine.memory_gbps), 4)
        path[part.variant] = EventPath(added_us=round(max(intercept - start, 0.0), 3))
        shown = part.held_out & (part.time_us > SCORED_ABOVE_US)
        predicted.append(intercept + slope * part.batch.bytes[shown])
        truth.append(part.time_us[shown])
    p, t = np.concatenate(predicted), np.concatenate(truth)
    rows = int(sum((~part.held_out).sum() for part in measured))
    return Streamed(
        machine=machine,
        share=share,
        path=path,
        spread=float(np.std(np.log(p / t))),
        source=measured[0].source,
        rows=rows,
        date=FIT_DATE,
        gmae=gmae(p, t),
        mape=mape(p, t),
    )


def _line(bytes_: FloatArray, time_us: FloatArray) -> tuple[float, float]:
    """Least squares on the relative error."""
    design = np.stack([np.ones_like(bytes_), bytes_], axis=1) / time_us[:, None]
    (intercept, slope), *_ = np.linalg.lstsq(design, np.ones(len(time_us)), rcond=None)
    return float(intercept), float(slope)
