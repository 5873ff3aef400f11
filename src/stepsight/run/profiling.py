"""Profiles of a running workload: Kineto and execution trace, one pair per rank."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, schedule

from stepsight.program.job import Call
from stepsight.run.record import Recorder
from stepsight.run.trainer import Trainer
from stepsight.run.worker import Rank
from stepsight.workload.files import Workload

PART = ".part"
"""Ends the name of a file that is not finished."""
WARM_STEPS = 6
"""Until buckets, buffers and code have found their places."""


def profile_rank(rank: Rank, workload: Workload, folder: str, steps: int) -> tuple[str, str]:
    """Profiles ``steps`` steps after warm-up; returns the two files written, which whoever called renames."""
    trainer = Trainer(workload, rank.rank, rank.device)
    for _ in range(WARM_STEPS):
        trainer.step()
    kineto = Path(folder) / f"rank{rank.rank}.pt.trace.json{PART}"
    et = Path(folder) / f"rank{rank.rank}_et.json{PART}"
    with torch.profiler.profile(
        activities=_activities(rank.device),
        record_shapes=True,
        schedule=schedule(wait=0, warmup=1, active=steps),
        execution_trace_observer=ExecutionTraceObserver().register_callback(str(et)),
    ) as profiler:
        for i in range(steps + 1):
            trainer.step()
            if i < steps:
                profiler.step()
    profiler.export_chrome_trace(str(kineto))
    return str(kineto), str(et)


def profile_host(rank: Rank, workload: Workload, folder: str, steps: int) -> str:
    """Profiles ``steps`` steps with as little as possible recorded: the host's times are what is wanted."""
    trainer = Trainer(workload, rank.rank, rank.device)
    for _ in range(WARM_STEPS):
        trainer.step()
    with torch.profiler.profile(activities=_activities(rank.device)) as profiler:
        for _ in range(steps):
            trainer.step()
    path = Path(folder) / f"{workload.name}_rank{rank.rank}.pt.trace.json"
    profiler.export_chrome_trace(str(path))
    return str(path)


def _activities(device: str) -> list[ProfilerActivity]:
    on_gpu = [ProfilerActivity.CUDA] if device.startswith("cuda") else []
    return [ProfilerActivity.CPU, *on_gpu]


def record_step(rank: Rank, workload: Workload) -> list[Call]:
    """Every library call of one step after warm-up, in order."""
    trainer = Trainer(workload, rank.rank, rank.device)
    for _ in range(WARM_STEPS):
        trainer.step()
    recorder = Recorder()
    with recorder:
        trainer.step()
    return list(recorder.calls)
