"""Training boosted oblivious trees on a squared or clipped error, with numpy and a fixed seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.learned.residual import Residual
from stepsight.kernels.learned.trees import ObliviousTrees
from stepsight.score import gmae


@dataclass(frozen=True, slots=True)
class Settings:
    """How long and how carefully to boost. Chosen on left-out shapes of the fp32 GEMM tables.

    ``clip``: the residual from which a row pulls no harder (Huber's loss), so that rows measured in a
    throttled or disturbed moment do not bend their neighbours. ``bins``: candidate thresholds per feature
    (quantiles of the training rows).
    """

    trees: int = 600
    depth: int = 6
    rate: float = 0.15
    features: float = 0.4
    rows: float = 0.8
    damping: float = 0.5
    clip: float = np.inf
    bins: int = 64
    repeats: int = 1
    seed: int = 20260101


def edges_of(columns: FloatArray, bins: int) -> list[FloatArray]:
    """Candidate thresholds of every feature."""
    found = []
    for column in columns:
        values = np.unique(column)
        if len(values) <= bins:
            found.append((values[1:] + values[:-1]) / 2)
        else:
            found.append(np.unique(np.quantile(column, np.linspace(0, 1, bins + 1)[1:-1])))
    return found


def boost(
    columns: FloatArray, target: FloatArray, settings: Settings, weight: FloatArray | None = None
) -> ObliviousTrees:
    """Fit trees so that their sum comes near ``target``; columns are features × rows.

    With ``repeats`` the mean of that many fits with seeds of their own.
    """
    fits = [_boost(columns, target, settings, weight, settings.seed + i) for i in range(settings.repeats)]
    return ObliviousTrees(
        np.concatenate([fit.feature for fit in fits]),
        np.concatenate([fit.threshold for fit in fits]),
        np.concatenate([fit.leaf for fit in fits]) / np.float32(len(fits)),
        float(np.mean([fit.bias for fit in fits])),
    )


def _boost(
    columns: FloatArray, target: FloatArray, settings: Settings, weight: FloatArray | None, seed: int
) -> ObliviousTrees:
    rng = np.random.default_rng(seed)
    edges = edges_of(columns, settings.bins)
    binned = np.stack([np.searchsorted(e, c).astype(np.int32) for e, c in zip(edges, columns, strict=True)])
    usable = np.array([i for i, e in enumerate(edges) if len(e)])
    weights = np.ones(len(target)) if weight is None else weight
    bias = float(np.average(target, weights=weights) if np.isinf(settings.clip) else np.median(target))
    fitted = np.full(len(target), bias)
    chosen, cuts, leaves = [], [], []
    for _ in range(settings.trees):
        subset = rng.choice(usable, max(1, int(len(usable) * settings.features)), replace=False)
        rows = np.nonzero(rng.random(len(target)) < settings.rows)[0]
        gradient = np.clip(target - fitted, -settings.clip, settings.clip)[rows] * weights[rows]
        feature, cut, leaf_of = _grow(
            binned[subset][:, rows], gradient, weights[rows], edges, subset, settings
        )
        size = 1 << settings.depth
        mass = np.bincount(leaf_of, weights[rows], size)
        leaf = settings.rate * np.bincount(leaf_of, gradient, size) / (mass + settings.damping)
        index = np.zeros(len(target), dtype=np.int64)
        for f, c in zip(feature, cut, strict=True):
            index = index * 2 + (binned[f] > c)
        fitted += leaf[index]
        chosen.append(feature)
        cuts.append([edges[f][c] for f, c in zip(feature, cut, strict=True)])
        leaves.append(leaf)
    return ObliviousTrees(
        np.array(chosen, dtype=np.int64),
        np.array(cuts, dtype=np.float32),
        np.array(leaves, dtype=np.float32),
        bias,
    )


def _grow(
    binned: npt.NDArray[np.int32],
    gradient: FloatArray,
    weight: FloatArray,
    edges: list[FloatArray],
    subset: npt.NDArray[np.int64],
    settings: Settings,
) -> tuple[list[int], list[int], npt.NDArray[np.int64]]:
    """One tree: at every level the one question that explains most over all leaves so far."""
    bins = settings.bins
    leaf = np.zeros(binned.shape[1], dtype=np.int64)
    feature: list[int] = []
    cut: list[int] = []
    for level in range(settings.depth):
        leaves = 1 << level
        best, best_at, best_cut = -1.0, 0, 0
        offset = leaf * bins
        for i, f in enumerate(subset):
            key = offset + binned[i]
            g = np.bincount(key, gradient, leaves * bins).reshape(leaves, bins).cumsum(1)
            w = np.bincount(key, weight, leaves * bins).reshape(leaves, bins).cumsum(1)
            last = len(edges[f])
            low_g, low_w = g[:, :last], w[:, :last]
            high_g, high_w = g[:, -1:] - low_g, w[:, -1:] - low_w
            gain = (low_g**2 / (low_w + settings.damping) + high_g**2 / (high_w + settings.damping)).sum(0)
            at = int(gain.argmax())
            if gain[at] > best:
                best, best_at, best_cut = float(gain[at]), i, at
        feature.append(int(subset[best_at]))
        cut.append(best_cut)
        leaf = leaf * 2 + (binned[best_at] > best_cut)
    return feature, cut, leaf


RATE_ROUNDS = 5
NEIGHBOURS = 25
"""Rows, in the order of the file, whose median says at which rate a row ran."""
CERTAIN = 0.06
"""Residuals further than this from the middle between the rates speak for themselves."""
APART = 0.05
"""Rates closer than this (in logarithms) are taken to be one."""
LEAST_SLOW_SHARE = 0.15
"""Share of the rows below which a rate is a disturbance."""


def at_one_rate(table: FloatArray, target: FloatArray, settings: Settings) -> ObliviousTrees:
    """Trees at the rate around which the rows lie closer; rows in the order they were measured in.

    ``table`` is features × rows, ``target`` the logarithm to fit.
    """
    columns = table.astype(np.float32)
    slow, apart = np.zeros(len(target), dtype=bool), 0.0
    trees = boost(table, target, settings)
    for _ in range(RATE_ROUNDS):
        left = target - trees.predict(columns)
        slow = _slow(left, slow)
        if not LEAST_SLOW_SHARE < slow.mean() < 1 - LEAST_SLOW_SHARE:
            return boost(table, target, settings)
        apart = float(np.median(left[slow]) - np.median(left[~slow]))
        trees = boost(table, target - apart * slow, settings)
    if apart < APART:
        return boost(table, target, settings)
    rates = [trees, replace(trees, bias=trees.bias + apart)]
    return min(rates, key=lambda fit: gmae(np.exp(fit.predict(columns) - target), np.ones(len(target))))


def _slow(left: FloatArray, before: np.typing.NDArray[np.bool_]) -> np.typing.NDArray[np.bool_]:
    """Which rows ran at the lower rate, by what a fit leaves of them and of their neighbours."""
    middle = float(np.median(left))
    if before.any() and not before.all():
        middle = float(np.median(left[before]) + np.median(left[~before])) / 2
    reach = NEIGHBOURS // 2
    padded = np.pad(left, reach, mode="reflect")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS), axis=1)
    certain = np.abs(left - middle) > CERTAIN
    return np.asarray(np.where(certain, left > middle, around > middle))


RESIDUAL_SETTINGS = Settings(trees=150, depth=4, rate=0.1)
"""Few, shallow trees: the base carries the shape; chosen on the left-out fifth of A100's operators."""
LEAST_SPREAD = 0.01
ROUNDS = 4
"""Fits, each weighing rows by the inverse of the last one's error: towards the median, which repeated
measurements at two clock rates (A100's rows of one shape differ by up to 1.24) do not pull between them."""
LEAST_ERROR = 0.02


def fit_residual(
    family: str, variant: str, spec: GpuSpec, named: Mapping[str, FloatArray], base_us: FloatArray,
    time_us: FloatArray, left_out: npt.NDArray[np.bool_], source: str, settings: Settings = RESIDUAL_SETTINGS,
    two_rates: bool = False,
) -> Residual:  # fmt: skip
    """Trees on the rows that are not left out; spread and error on those that are.

    ``two_rates``: the rows, in the order they were measured in, may have run at two clock rates.
    """
    table = np.stack(list(named.values()))
    target = np.log(time_us / base_us)
    kept = ~left_out
    if two_rates:
        trees = at_one_rate(table[:, kept], target[kept], settings)
    else:
        trees = _towards_median(table[:, kept], target[kept], settings)
    predicted = base_us * np.exp(trees.predict(table.astype(np.float32)))
    judged = left_out if left_out.any() else kept
    errors = np.log(predicted[judged] / time_us[judged])
    return Residual(
        family=family,
        variant=variant,
        gpu=spec.name,
        architecture=spec.architecture,
        sms=spec.sms,
        columns=tuple(named),
        low=tuple(float(v) for v in table[:, kept].min(axis=1)),
        high=tuple(float(v) for v in table[:, kept].max(axis=1)),
        spread=round(max(ninety_percent(errors), LEAST_SPREAD), 4),
        rows=int(kept.sum()),
        gmae=round(gmae(predicted[judged], time_us[judged]), 5),
        source=source,
        trees=trees,
    )


def _towards_median(table: FloatArray, target: FloatArray, settings: Settings) -> ObliviousTrees:
    weight = np.ones(len(target))
    trees = boost(table, target, settings, weight)
    for _ in range(ROUNDS - 1):
        weight = 1 / np.maximum(np.abs(target - trees.predict(table.astype(np.float32))), LEAST_ERROR)
        trees = boost(table, target, settings, weight / weight.mean())
    return trees


def ninety_percent(errors: FloatArray) -> float:
    """The standard deviation of a normal distribution whose 90 % interval holds 90 % of these errors."""
    return float(np.quantile(np.abs(errors), 0.90) / 1.645)
