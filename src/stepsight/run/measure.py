"""Measured step times of workloads that really train here.

Several workloads can be measured by one group of ranks: blocks of their steps are
interleaved, so that a machine's slow minutes fall on all of them equally.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.run.ranks import Ranks
from stepsight.run.worker import Rank, map_for_steps
from stepsight.terminal import counted
from stepsight.workload.files import Workload


@dataclass(frozen=True, slots=True)
class Measurement:
    """When each rank's steps began and ended, in µs on one clock: ranks × blocks × (steps + 1).

    A step of the job ends when its last rank does, and lasts from there to the next such end, as
    in a predicted timeline. (The longest of the ranks' own steps would be longer than that: a rank
    that is late in one step is early in the next.) ``step_us`` is the median over blocks of
    each block's median step: what repeats best on a shared machine. ``spread`` is the
    standard deviation of ln(block median): 0.03 means blocks differ by about ±3 %.
    """

    name: str
    device: str
    marks_us: FloatArray

    @property
    def ranks(self) -> int:
        return int(self.marks_us.shape[0])

    @property
    def job_us(self) -> FloatArray:
        """Blocks × steps, from one end of the whole job to the next."""
        return np.diff(self.marks_us.max(axis=0), axis=-1)

    @property
    def block_us(self) -> FloatArray:
        """The median step of each block."""
        return np.asarray(np.median(self.job_us, axis=1))

    @property
    def step_us(self) -> float:
        return float(np.median(self.block_us))

    @property
    def low_us(self) -> float:
        return float(np.quantile(self.job_us, 0.1))

    @property
    def high_us(self) -> float:
        return float(np.quantile(self.job_us, 0.9))

    @property
    def spread(self) -> float:
        return float(np.std(np.log(self.block_us)))

    @property
    def rank_us(self) -> FloatArray:
        """The median step of each rank."""
        return np.asarray(np.median(np.diff(self.marks_us, axis=-1), axis=(1, 2)))

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "workload": self.name,
            "device": self.device,
            "ranks": self.ranks,
            "measured_us": self.step_us,
            "low_us": self.low_us,
            "high_us": self.high_us,
            "spread": self.spread,
            "rank_us": self.rank_us.tolist(),
            "block_us": self.block_us.tolist(),
            "steps_us": self.job_us.ravel().tolist(),
        }


def measure_all(
    ranks: Ranks, workloads: Sequence[Workload], *, steps: int = 10, blocks: int = 3, warmup: int = 3
) -> list[Measurement]:
    """Train several workloads on one group of ranks, their blocks interleaved."""
    for workload in workloads:
        if workload.ranks != ranks.ranks:
            problem = f"is spread over {counted(workload.ranks, 'rank')}, the group has {ranks.ranks}"
            raise InputError(workload.name, problem, f"set its ranks to {ranks.ranks}")
    answers = ranks.call(train, tuple(workloads), steps, blocks, warmup)
    marks = np.asarray(answers)
    return [Measurement(w.name, ranks.device, marks[:, i]) for i, w in enumerate(workloads)]


def train(rank: Rank, workloads: Sequence[Workload], steps: int, blocks: int, warmup: int) -> FloatArray:
    """On one rank: when its steps began and ended in µs, workloads × blocks × (steps + 1)."""
    from stepsight.run.trainer import Trainer

    trainers = [Trainer(workload, rank.rank, rank.device, seed=i) for i, workload in enumerate(workloads)]
    map_for_steps(rank.ranks, rank.device)  # the models have taken what was mapped at the start
    for trainer in trainers:
        for _ in range(max(warmup, 2)):  # data-parallel buckets are rebuilt after the first step
            trainer.step()
    marks = np.zeros((len(trainers), blocks, steps + 1))
    for block in range(blocks):
        for i, trainer in enumerate(trainers):
            marks[i, block] = _block(rank, trainer, steps)
    return marks


def _block(rank: Rank, trainer: Any, steps: int) -> FloatArray:
    """One untimed step to warm the caches, then ``steps`` timed ones without garbage collection."""
    gc.collect()
    gc.disable()
    try:
        trainer.step()
        return _cuda_steps(trainer, steps) if rank.device.startswith("cuda") else _cpu_steps(trainer, steps)
    finally:
        gc.enable()


def _cpu_steps(trainer: Any, steps: int) -> FloatArray:
    marks = np.zeros(steps + 1)
    marks[0] = time.perf_counter()
    for i in range(steps):
        trainer.step()
        marks[i + 1] = time.perf_counter()
    return marks * 1e6


def _cuda_steps(trainer: Any, steps: int) -> FloatArray:
    """By events on the GPU's own timeline: the host is not made to wait between steps.

    The host's clock, which all ranks of a node share, is read when the GPU has passed the last event.
    """
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for event in events[1:]:
        trainer.step()
        event.record()
    torch.cuda.synchronize()
    ended = time.perf_counter()
    return ended * 1e6 - np.array([event.elapsed_time(events[-1]) * 1e3 for event in events])


def profile(ranks: Ranks, workload: Workload, folder: Path, steps: int = 3) -> list[Path]:
    """Kineto and execution traces of every rank, as ``predict --trace`` reads them."""
    from stepsight.run.trainer import PART, profile_rank

    try:
        paths = ranks.call(profile_rank, workload, str(folder), steps)
        files = [Path(path) for pair in paths for path in pair]
        for file in files:  # torch does not say when it cannot write
            if not file.exists() or not file.read_bytes().rstrip().endswith(b"}"):
                raise InputError(str(folder), "a profile could not be written", "is the disk full?")
        return [file.replace(file.with_suffix("")) for file in files]
    except BaseException:
        for file in folder.glob(f"rank*{PART}"):
            file.unlink(missing_ok=True)
        raise
