"""Which fitted models answer for a GPU: its own, its chip's, or those of its nearest relatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepsight.estimate import Source
from stepsight.kernels.learned import LearnedModel
from stepsight.kernels.machine import Machine
from stepsight.platform.spec import GpuSpec

RELATIVES = 2
"""How many of the nearest measured GPUs stand in for an unmeasured one."""

TRANSFER_SPREAD = {"gemm": 0.16, "attention": 0.20, "conv": 0.25}
"""Standard deviation of ln(time) with a whole GPU left out (docs/accuracy.md)."""
USUAL_TRANSFER_SPREAD = 0.22
PER_DISTANCE = 0.03

STAND_INS = {
    "fp16": ("fp16", "bf16"),
    "bf16": ("bf16", "fp16"),
    "tf32": ("tf32", "bf16"),
    "fp64": ("fp64", "fp32"),
}
"""Whose efficiencies serve a dtype without tables: fp16 and bf16 run on the same units."""

THROTTLED = frozenset({"T4"})
"""Measured 25 % slow under its power limit: it speaks for its own chip only."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The models that answer, the machine figures to ask each with, and what to say about it."""

    models: tuple[LearnedModel, ...]
    machines: tuple[Machine, ...]
    source: Source
    spread: float
    note: str = ""


def choose(
    models: Sequence[LearnedModel], spec: GpuSpec, family: str, dtype: str, variant: str
) -> Choice | None:
    """The best models among ``models`` for kernels of one family, dtype and variant."""
    for stand_in in STAND_INS.get(dtype, (dtype,)):
        fitting = [m for m in models if m.family == family and m.dtype == stand_in]
        exact = [m for m in fitting if m.variant == variant]
        fitting = exact or [m for m in fitting if m.variant in ("", "linear")] or fitting
        if fitting:
            return _choice(fitting, spec, dtype, same_dtype=stand_in == dtype)
    return None


def _choice(fitting: Sequence[LearnedModel], spec: GpuSpec, dtype: str, *, same_dtype: bool) -> Choice:
    mine = Machine.of(spec, dtype)
    for model in fitting:
        if model.machine.same_chip(mine) and same_dtype:
            machine = model.machine.with_memory_of(mine)
            return Choice((model,), (machine,), Source.LEARNED, model.spread)
    for model in fitting:
        if model.machine.same_chip(mine) and {dtype, model.dtype} == {"fp16", "bf16"}:
            machine = model.machine.with_memory_of(mine)
            return Choice((model,), (machine,), Source.LEARNED, float(np.hypot(model.spread, 0.05)))
    ranked = sorted(
        (m for m in fitting if m.machine.name not in THROTTLED), key=lambda m: m.machine.distance(mine)
    )
    nearest = tuple(ranked[:RELATIVES])
    base = TRANSFER_SPREAD.get(fitting[0].family, USUAL_TRANSFER_SPREAD)
    spread = base + PER_DISTANCE * nearest[0].machine.distance(mine)
    names = " and ".join(dict.fromkeys(m.machine.name for m in nearest))
    return Choice(
        nearest,
        (mine,) * len(nearest),
        Source.TRANSFERRED,
        spread,
        f"carried over from {names} ({nearest[0].dtype})",
    )
