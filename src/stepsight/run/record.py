"""Profiles of steps that really train here."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, record_function

from stepsight.run.trainer import Trainer
from stepsight.run.worker import Rank
from stepsight.workload.files import Workload

PART = ".part"
"""Ends the name of a file that is not finished."""
WARM_STEPS = 6
"""Until buckets, buffers and code have found their places."""
RECORDS_END_S = 0.1
"""Gloo's threads close their profiler records after the rank that waited goes on; a profiler that stops
before that frees records in use (one process in thirty died so under torch 2.13)."""


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
        execution_trace_observer=ExecutionTraceObserver().register_callback(str(et)),
    ) as profiler:
        trainer.step()  # the profiler's own first buffers are not part of a step
        for i in range(steps):
            with record_function(f"ProfilerStep#{i + 1}"):
                trainer.step()
        time.sleep(RECORDS_END_S)
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
        time.sleep(RECORDS_END_S)
    path = Path(folder) / f"{workload.name}_rank{rank.rank}.pt.trace.json"
    profiler.export_chrome_trace(str(path))
    return str(path)


def _activities(device: str) -> list[ProfilerActivity]:
    on_gpu = [ProfilerActivity.CUDA] if device.startswith("cuda") else []
    return [ProfilerActivity.CPU, *on_gpu]
