"""The journal of a calibration: every sample as one JSON line, so that an interrupted one resumes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepsight.constants import area
from stepsight.documents import JsonLines, digest
from stepsight.errors import InputError
from stepsight.overheads.tables import OpStats, Overheads, Stat, class_defaults, op_class
from stepsight.program.job import Kernel

FILE, CHECK = "samples.jsonl", "check"
"""A line's check is the digest of its sample: a line that somebody edited is refused."""
PHASES, ALONE, FUSED = ("forward", "backward"), " alone", "fused "
"""Phases of lookups in records: plain, while the other ranks wait, of all tables of a rank in one call."""
STEP_QUANTILE = area("calibrate").number("STEP_QUANTILE")


def typical_us(times: Sequence[Sequence[float]]) -> float:
    """The median over all ranks and repeats: what `stepsight run` reports for steps, too."""
    return float(np.median([t for of_rank in times for t in of_rank]))


def step_us(blocks: Sequence[Sequence[float]]) -> float:
    """The time of a step from the timed steps of its interleaved blocks."""
    return float(np.quantile([t for block in blocks for t in block], STEP_QUANTILE))


def kernel_record(kernel: Kernel) -> dict[str, Any]:
    """A kernel as JSON holds it."""
    return {
        "family": kernel.family,
        "name": kernel.operator,
        "dtype": kernel.dtype,
        "dims": dict(kernel.dims),
    }


def kernel_from_record(record: Mapping[str, Any]) -> Kernel:
    sizes = tuple((name, float(size)) for name, size in record["dims"].items())
    return replace(Kernel.of(record["family"], record["dtype"], operator=record["name"]), dims=sizes)


def overhead_records(overheads: Overheads) -> list[dict[str, Any]]:
    """Gathered host overheads as JSON holds them: a record for each operator and each launch call."""
    ops = [{"op": name, "stats": msgspec.to_builtins(stats)} for name, stats in overheads.ops.items()]
    calls = [{"call": n, "stats": msgspec.to_builtins(stat)} for n, stat in overheads.launches.items()]
    return [*ops, *calls]


def overheads_from_records(records: Sequence[Mapping[str, Any]]) -> Overheads:
    """Only classes of operators that were seen have a stand-in for operators that were not."""
    ops = {r["op"]: msgspec.convert(r["stats"], OpStats) for r in records if "op" in r}
    calls = {r["call"]: msgspec.convert(r["stats"], Stat) for r in records if "call" in r}
    seen = {op_class(name) for name in ops}
    classes = {name: stats for name, stats in class_defaults(ops).items() if name in seen}
    return Overheads(ops, classes, calls, "profiled by stepsight calibrate", "calibrated")


def key_of(stage: str, record: Mapping[str, Any]) -> str:
    """What makes a sample the same sample in a resumed calibration."""
    named = {k: v for k, v in record.items() if k not in ("times_us", "stage")}
    return stage + json.dumps(named, sort_keys=True)


class Journal:
    """Samples on disk. Opening it reads what an earlier, interrupted calibration has left."""

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self.path = folder / FILE
        self.samples: list[dict[str, Any]] = []
        if self.path.exists() and not resume:
            raise InputError(
                str(folder),
                "holds an earlier calibration",
                "add --resume to go on with it, or name a new folder",
            )
        self._lines = JsonLines(self.path)
        for number, line in self._lines.entries:
            sample = dict(line) if isinstance(line, dict) else {}
            if sample.pop(CHECK, None) != digest(sample):
                raise InputError(
                    f"{self.path}: line {number}", "is not a sample that this version of calibrate wrote",
                    "delete the line, or calibrate into a new folder",
                )  # fmt: skip
            self.samples.append(sample)
        self._known = {key_of(s["stage"], s) for s in self.samples}

    def take_from(self, folder: Path, stages: Sequence[str]) -> None:
        """Copy the samples of these stages from another calibration of the same machine."""
        if not (folder / FILE).exists():
            raise InputError(str(folder), "holds no calibration", "name a folder that calibrate wrote")
        other = Journal(folder, resume=True)
        for stage in stages:
            self.add(stage, [s for s in other.of(stage) if not self.known(stage, s)])

    def known(self, stage: str, record: Mapping[str, Any]) -> bool:
        """Whether this was measured before."""
        return key_of(stage, record) in self._known

    def of(self, stage: str) -> list[dict[str, Any]]:
        return [s for s in self.samples if s["stage"] == stage]

    def add(self, stage: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Append samples; they are on disk when this returns."""
        new = [{"stage": stage, **r} for r in records]
        self._lines.add({**r, CHECK: digest(json.loads(json.dumps(r)))} for r in new)
        self.samples += new
        self._known.update(key_of(stage, s) for s in new)
