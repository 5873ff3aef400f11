"""Which fitted models answer for a GPU: its own, its chip's, or those of its nearest relatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepsight.estimate import Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.learned.model import LearnedModel
from stepsight.kernels.machine import Machine

RELATIVES = {"fp32": 2}
"""How many of the nearest measured GPUs stand in for an unmeasured one: two of the old and diverse
fp32 generations, else one. Chosen by leaving GPUs out."""

TRANSFER_SPREAD = {"gemm": 0.16, "attention": 0.20, "conv": 0.25}
"""Standard deviation of ln(time) with a whole GPU left out (docs/accuracy.md)."""
USUAL_TRANSFER_SPREAD = 0.22
PER_DISTANCE = 0.03
OTHER_DTYPE_SPREAD = 0.05
"""Added where a dtype is served by its sibling on the same chip."""

STAND_INS = {
    "fp16": ("fp16", "bf16"),
    "bf16": ("bf16", "fp16"),
    "tf32": ("tf32", "bf16"),
    "fp64": ("fp64", "fp32"),
}
"""Whose efficiencies serve a dtype without tables: fp16 and bf16 run on the same units."""

ROW_FAMILIES = frozenset({"softmax", "layer_norm"})
"""Row-wise kernels compute in fp32 whatever they read: the fp32 tables serve all dtypes."""

DERIVED = {
    "attention_backward": ("attention", 3.05),
    "conv_dgrad": ("conv", 0.9),
    "conv_wgrad": ("conv", 1.05),
}
"""Families timed as a multiple of another: attention's backward has 2.5 times the forward's FLOPs at
0.82 of its rate (FlashAttention-2 and -3 papers, A100 and H100); the two gradients of a convolution
take 1.95 times its forward (median of 1,020 fp32 ResNet layers on V100, transformer_ops.parquet), the
input's 0.9 (VGG training on H100, trace_kernels.parquet)."""
SPREAD_DERIVED = 0.2

THROTTLED = frozenset({"T4"})
"""Measured 25 % slow under its power limit: it speaks for its own generation and its sibling only."""
THROTTLED_SIBLINGS = frozenset({"volta", "turing"})


DUAL_ISSUE_REACH = 0.91
"""fp32 peaks of chips with 128 lanes per multiprocessor (GA10x, Ada, Hopper, Blackwell) count two
issues a clock. Their large GEMMs reach this share of what the 64-lane chips (P100, V100, A100) make
of their peak: H100 0.93 in trace_kernels.parquet (fp32 GEMMs above 1 ms) and in the inference rows
of nlp_fp32.csv, both short of the steady state of training."""
DUAL_ISSUE = frozenset({"ada", "hopper", "blackwell"})

SUSTAINED = {
    ("L4", "fp32"): 0.70,  # 72 W board; chosen on the inference rows of nlp_fp32.csv
    ("L4", "tensor"): 0.80,  # the same limit; tensor cores draw less for their work (no measurement)
    ("volta", "tensor"): 0.88,  # transformer_ops.parquet, fp16 GEMMs of GPT layers on two V100s
    ("turing", "tensor"): 0.83,  # the same on a Titan RTX
    ("RTX-2080Ti", "tensor"): 0.79,  # the same: GeForce accumulates in fp32 at half rate
}
"""Share of its data-sheet arithmetic that a board or a generation keeps up, where its relatives'
efficiencies do not show it; by name or architecture, and unit."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The models that answer, the machine figures to ask each with, and what to say about it."""

    models: tuple[LearnedModel, ...]
    machines: tuple[Machine, ...]
    source: Source
    spread: float
    note: str = ""
    factor: float = 1.0

    def times(self, factor: float, note: str) -> Choice:
        """The same models for a family that takes ``factor`` times as long."""
        spread = float(np.hypot(self.spread, SPREAD_DERIVED))
        notes = "; ".join(filter(None, (note, self.note)))
        return replace(self, source=Source.TRANSFERRED, spread=spread, note=notes, factor=factor)


def choose(
    models: Sequence[LearnedModel], spec: GpuSpec, family: str, dtype: str, variant: str
) -> Choice | None:
    """The best models among ``models`` for kernels of one family, dtype and variant."""
    if family in DERIVED:
        base, times = DERIVED[family]
        found = choose(models, spec, base, dtype, variant)
        return found and found.times(times, f"{times:g} × {base}")
    serving = STAND_INS.get(dtype, (dtype,))
    for stand_in in (*serving, "fp32") if family in ROW_FAMILIES else serving:
        fitting = [m for m in models if m.family == family and m.dtype == stand_in]
        exact = [m for m in fitting if m.variant == variant]
        fitting = exact or [m for m in fitting if m.variant in ("", "linear")] or fitting
        if fitting:
            return _choice(fitting, spec, dtype, same_dtype=stand_in == dtype)
    return None


def _choice(fitting: Sequence[LearnedModel], spec: GpuSpec, dtype: str, *, same_dtype: bool) -> Choice:
    mine = Machine.of(spec, dtype)
    own = sorted(
        (m for m in fitting if m.machine.same_chip(mine)),
        key=lambda m: (m.machine.name != mine.name, abs(m.machine.memory_gbps - mine.memory_gbps)),
    )
    alike = same_dtype or {dtype, fitting[0].dtype} == {"fp16", "bf16"} or fitting[0].family in ROW_FAMILIES
    if own and alike:
        machine = own[0].machine.with_memory_of(mine)
        spread = own[0].spread if same_dtype else float(np.hypot(own[0].spread, OTHER_DTYPE_SPREAD))
        return Choice((own[0],), (machine,), Source.LEARNED, spread)
    ranked = sorted(
        (m for m in fitting if m.machine.name not in THROTTLED or mine.architecture in THROTTLED_SIBLINGS),
        key=lambda m: m.machine.distance(mine),
    )
    nearest = tuple(ranked[: RELATIVES.get(fitting[0].dtype, 1)])
    mine = _sustained(mine, nearest[0].dtype)
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


def _sustained(machine: Machine, dtype: str) -> Machine:
    """The machine with the arithmetic it keeps up, as far as its relatives' figures do not show it."""
    unit = "fp32" if dtype in ("fp32", "fp64") else "tensor"
    share = SUSTAINED.get((machine.name, unit), 1.0) * SUSTAINED.get((machine.architecture, unit), 1.0)
    wide = machine.architecture in DUAL_ISSUE or (machine.architecture == "ampere" and machine.gddr)
    if unit == "fp32" and wide:
        share *= DUAL_ISSUE_REACH
    return replace(machine, tflops=machine.tflops * share)
