"""Training boosted oblivious trees on a squared or clipped error, with numpy and a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepsight.estimate import FloatArray
from stepsight.kernels.learned.trees import ObliviousTrees


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
