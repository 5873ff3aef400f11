"""What ranks wait for each other because their times differ from step to step.

A step ends with its last rank. Where loads are even any rank may be the last, and the longest of
several times that vary is longer than each of them is on average.
"""

from __future__ import annotations

import math

import numpy as np

from stepsight.estimate import FloatArray

_erf = np.vectorize(math.erf, otypes=[np.float64])


def straggling_us(times_us: FloatArray, jitter: float) -> FloatArray:
    """How much longer the longest of these times is on average than the longest on paper.

    The last axis are the ranks. Each rank's time varies by a standard deviation of ``jitter`` times
    itself, apart from the others. Two at a time, as if the longer of two were normal too
    (C. E. Clark, Operations Research 9, 1961: exact for two ranks).
    """
    if jitter <= 0.0 or times_us.shape[-1] < 2:
        return np.zeros(times_us.shape[:-1])
    ordered = np.sort(times_us, axis=-1)
    mean, variance = ordered[..., -1], (jitter * ordered[..., -1]) ** 2
    for other in np.moveaxis(ordered[..., -2::-1], -1, 0):
        mean, variance = _longer(mean, variance, other, (jitter * other) ** 2)
    return np.asarray(mean - ordered[..., -1])


def _longer(a: FloatArray, a2: FloatArray, b: FloatArray, b2: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of the longer of two normal times, given by theirs."""
    spread = np.sqrt(np.maximum(a2 + b2, np.finfo(np.float64).tiny))
    apart = (a - b) / spread
    first = 0.5 * (1 + _erf(apart / math.sqrt(2)))
    density = np.exp(-0.5 * apart**2) / math.sqrt(2 * math.pi)
    mean = a * first + b * (1 - first) + spread * density
    square = (a**2 + a2) * first + (b**2 + b2) * (1 - first) + (a + b) * spread * density
    return mean, np.maximum(square - mean**2, 0.0)
