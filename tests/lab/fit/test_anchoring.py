"""Exponents of anchoring: chosen so that what is missed here tells what is missed there."""

from __future__ import annotations

import numpy as np
import pytest

from lab.fit.anchoring import OperatorStep, PairSample, Part, fit_exponents, operator_steps, ordered_pairs
from stepsight.prediction.traced.anchoring import PRODUCT, STREAM, UNSIZED, class_of
from stepsight.program.job import Kernel, Sizing


def _sample(share: float, source: str = "A", target: str = "B") -> PairSample:
    """Operators of all classes of which the second GPU's model misses ``share`` of what the first's does."""
    rng = np.random.default_rng(7)
    count = 60
    missed = rng.normal(0.0, 0.4, count)
    model, there = rng.uniform(1e4, 1e5, count), rng.uniform(1e4, 1e5, count)
    kinds = tuple([PRODUCT, STREAM, UNSIZED] * (count // 3))
    return PairSample(
        "w", source, target, kinds, model * np.exp(missed), model, there * np.exp(share * missed), there
    )


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_share_that_carries_over_is_found(share):
    assert all(abs(w - share) < 0.03 for w in fit_exponents([_sample(share)]).values())


def test_a_kernel_without_sizes_is_in_a_class_of_its_own():
    gemm = Kernel.of("gemm", m=64, n=64, k=64)
    assert class_of(gemm) == PRODUCT
    assert class_of(Kernel.of("softmax", rows=4, cols=4)) == STREAM
    assert class_of(Kernel.of("gemm", sizing=Sizing.UNKNOWN, m=64, n=64, k=64)) == UNSIZED


def test_pairs_hold_what_both_gpus_show():
    parts = [Part((row, 0), "mul", (Kernel.of("fill", bytes=4),), 50.0) for row in range(3)]
    a, b = OperatorStep("w", "A", tuple(parts)), OperatorStep("w", "B", tuple(parts[1:]))
    other = OperatorStep("v", "C", tuple(parts))
    pairs = list(ordered_pairs([a, b, other]))
    assert [(x.gpu, y.gpu, len(x.parts), len(y.parts)) for x, y in pairs] == [
        ("A", "B", 2, 2),
        ("B", "A", 2, 2),
    ]


@pytest.mark.data
def test_the_table_of_operators_gives_many_pairs(measured_data):
    steps = operator_steps(measured_data)
    pairs = list(ordered_pairs(steps))
    assert sum("train" in a.name for a, _ in pairs) >= 46
    assert len({s.gpu for s in steps}) >= 10
