"""Random lookups measured on this CPU, for fitting and scoring its lookup model."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import torch

from stepsight.calibrate.lookups.fit import ASSUMED_CACHES
from stepsight.calibrate.lookups.microbench import (
    MOST_VALUES,
    LookupSample,
    measure_lookups,
    random_lookups,
    write_samples,
)
from stepsight.estimate import FloatArray
from stepsight.kernels.embedding.cpu.work import detect_caches
from stepsight.tables.table import optimizer_state

LOOKUPS_TOGETHER, PASSES = 8, 2
"""Lookups whose repeats are interleaved, and how often each is built anew and measured again."""


def measure_here(seconds: float, path: Path, seed: int, operator: str, optimizer: str) -> None:
    """Measure random lookups on this CPU for so long, in `PASSES` passes, and write them to ``path``."""
    drawn, rng = random_lookups(140, 4, seed), np.random.default_rng(seed)
    lookups = [replace(lookup, operator=operator, optimizer=optimizer) for lookup in drawn]
    values = round(MOST_VALUES * (1 + max(optimizer_state(optimizer))))
    chosen = rng.permutation(len(lookups))
    started, times = time.monotonic(), dict[int, list[FloatArray]]()
    for number in range(PASSES):
        memory, done = torch.zeros(values), list[int]()
        for first in range(0, len(chosen), LOOKUPS_TOGETHER):
            if time.monotonic() > started + seconds * (number + 1) / PASSES:
                break
            members = chosen[first : first + LOOKUPS_TOGETHER].tolist()
            measured = measure_lookups(
                [lookups[i] for i in members], repeats=5, seed=seed * 1000 + first, memory=memory
            )
            for i, sample in zip(members, measured, strict=True):
                times.setdefault(i, []).append(sample.times_us[0])
            done += members
            click.echo(f"pass {number + 1} of {PASSES}: {len(done)} lookups measured", err=True)
        chosen = rng.permutation(done)
        samples = [LookupSample(lookups[i], np.array(times[i])) for i in sorted(done)]
        write_samples(path, samples, detect_caches() or ASSUMED_CACHES)
