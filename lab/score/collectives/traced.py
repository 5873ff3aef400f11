"""Collectives seen in multi-rank traces against the catalogue's curves."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from stepsight.score import BLIND, Score

PLATFORM_OF_SET = {
    "param_dlrm_8xV100": "8xV100-SXM2",
    "astra_megatron_tp8_8xA100": "8xA100-SXM4-40G",
    "megatronlm_tp2_2xV100PCIe": "2xV100-PCIE-16G",
}
"""Traces whose ranks were all recorded, so that the wait for the last rank can be distinguished."""
KIND_OF_OP = {
    "nccl:all_reduce": "all_reduce", "allreduce": "all_reduce", "nccl:all_to_all": "all_to_all",
}  # fmt: skip
EXPLAINED = {
    "param_dlrm_8xV100": "tiny messages at 1 µs resolution; NVLink mesh carried from 4 GPUs",
    "astra_megatron_tp8_8xA100": "one size of 64 MiB makes 27 of 28 calls",
    "megatronlm_tp2_2xV100PCIe": "PCIe carried over from other GPUs",
}


def trace_scores(path: Path) -> list[Score]:
    """One score per trace: the median synced duration of every kind and size."""
    from stepsight.platform.load import load_platform

    calls: dict[tuple[str, str, float, int], list[float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            known = row["set"] in PLATFORM_OF_SET and row["collective"] in KIND_OF_OP
            if known and row["bytes"] and row["synced_dur_us"]:
                key = (row["set"], KIND_OF_OP[row["collective"]], float(row["bytes"]), int(row["group_size"]))
                calls.setdefault(key, []).append(float(row["synced_dur_us"]))
    found = []
    for name, platform in PLATFORM_OF_SET.items():
        keys = [key for key in calls if key[0] == name]
        if not keys:
            continue
        models = load_platform(platform).collectives
        predicted = [
            float(models.estimate(kind, [size], tuple(range(ranks))).time_us[0])
            for _, kind, size, ranks in keys
        ]
        measured = [float(np.median(calls[key])) for key in keys]
        used = (
            f"synced durations, {sum(len(calls[key]) for key in keys)} calls by kind and size, on {platform}"
        )
        found.append(
            Score.of(
                "collectives",
                f"trace {name}",
                predicted,
                measured,
                used,
                note=EXPLAINED[name],
                exposure=BLIND,
            )
        )
    return found
