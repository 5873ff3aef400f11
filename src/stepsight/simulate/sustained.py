"""Kernels of a job at the clock that its GPUs keep: single ones, and those that stand for many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepsight.estimate import Estimate, Estimates, FloatArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.platform.conditions import KernelTime
from stepsight.platform.load import Platform
from stepsight.platform.power import Draw, Draws, Power, draws
from stepsight.program.job import Kernel
from stepsight.program.observation import Observation


@dataclass(frozen=True, slots=True)
class Sustained:
    """Kernels' times at a clock (share of boost), and what they draw at boost."""

    estimates: Estimates
    draws: Draws
    clock: float


def sustained(
    kernels: Sequence[Kernel], counts: FloatArray, platform: Platform, seen: Sequence[Observation] = ()
) -> Sustained:
    """The times of kernels that run this many times each, back to back for hours.

    ``seen``: what a trace observed of each; its share and correction scale the kernel's time.
    """
    found, drawn = at_boost(kernels, platform)
    time_us = found.time_us
    if seen:
        factor = np.array([o.share * o.correction for o in seen])
        time_us = at_least_empty(factor * time_us, seen, platform)
    part = np.divide(time_us, found.time_us, out=np.ones(len(kernels)), where=found.time_us > 0)
    drawn = Draws(drawn.time_us * part, drawn.clock_bound_us * part, drawn.flop_j * part, drawn.byte_j * part)
    power = platform.conditions.power
    clock = 1.0 if power is None else power.clock(drawn.total(counts))
    return Sustained(replace(found, time_us=time_us + drawn.clock_bound_us * (1 / clock - 1)), drawn, clock)


def sustained_alone(kernel: Kernel, time_us: float, gpu: GpuSpec) -> tuple[float, float]:
    """What a kernel of that time in the tables takes, run by itself for hours, and its clock over boost."""
    power = Power.of(gpu)
    if power is None:
        return time_us, 1.0
    drawn = power.at_boost(draws([kernel], np.array([time_us]), gpu)).total(np.ones(1))
    clock = power.alone(drawn)
    return drawn.time_us + drawn.clock_bound_us * (1 / clock - 1), clock


def at_boost(kernels: Sequence[Kernel], platform: Platform) -> tuple[Estimates, Draws]:
    """Times and draws at boost clock; some kernels stand for many."""
    single = [i for i, k in enumerate(kernels) if not k.parts]
    plain, drawn = platform.conditions.kernels([kernels[i] for i in single])
    if len(single) == len(kernels):
        return plain, drawn
    known = platform.conditions.known_kernels(part for k in kernels for part, _ in k.parts)
    rows = np.zeros((7, len(kernels)))
    rows[:, single] = (
        plain.time_us, plain.source, plain.spread,
        drawn.time_us, drawn.clock_bound_us, drawn.flop_j, drawn.byte_j,
    )  # fmt: skip
    notes = {single[at]: note for at, note in plain.notes.items()}
    for i in set(range(len(kernels))).difference(single):
        one = _summed(kernels[i], known, platform.spec.gpu.kernel_gap_us)
        rows[:, i] = (
            one.estimate.time_us, one.estimate.source, one.estimate.spread,
            one.draw.time_us, one.draw.clock_bound_us, one.draw.flop_j, one.draw.byte_j,
        )  # fmt: skip
        if one.estimate.note:
            notes[i] = one.estimate.note
    return Estimates(rows[0], rows[1].astype(np.int64), rows[2], notes), Draws(*rows[3:])


def _summed(kernel: Kernel, known: Mapping[Kernel, KernelTime], gap_us: float) -> KernelTime:
    """A kernel's parts one after the other, with the GPU's gap between two of them (the gap after the last
    belongs to the walk). Their errors are common, so their spreads are averaged by time."""
    draw, spread_us, launches = Draw(), 0.0, 0
    for part, n in kernel.parts:
        one = known[part]
        draw = draw.plus(one.draw, n)
        spread_us += n * one.estimate.time_us * one.estimate.spread
        launches += n
    longest = max(kernel.parts, key=lambda item: item[1] * known[item[0]].estimate.time_us)[0]
    most, total = known[longest].estimate, draw.time_us
    spread = spread_us / total if total > 0 else most.spread
    return KernelTime(Estimate(total + gap_us * (launches - 1), Source(most.source), spread, most.note), draw)


def at_least_empty(time_us: FloatArray, seen: Sequence[Observation], platform: Platform) -> FloatArray:
    """The times with each part of a call taking no less than a kernel that does nothing."""
    parts = np.array([o.share < 1.0 for o in seen], dtype=bool)
    if not parts.any():
        return time_us
    empty_us = platform.kernels.estimate([Kernel.of("fill", bytes=4)]).time_us[0]
    return np.where(parts, np.maximum(time_us, empty_us), time_us)
