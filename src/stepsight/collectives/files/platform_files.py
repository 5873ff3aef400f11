"""The curves that a platform folder keeps: ``collectives/*.csv`` and ``*.json``.

CSV columns: kind, ranks, bytes, time_us, and nodes where a group spans several. Every file that
``stepsight calibrate`` and ``stepsight collective --import`` write has this form.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepsight.collectives.curve import Curve
from stepsight.collectives.files.timings import Timing
from stepsight.collectives.measured import MeasuredSystem
from stepsight.collectives.shapes import NO_SHAPES
from stepsight.collectives.topology import GroupShape
from stepsight.documents import write_whole
from stepsight.errors import InputError, StepsightError
from stepsight.hardware.spec import PlatformSpec
from stepsight.inputs import csv_records, read_json, read_text
from stepsight.program.job import COLLECTIVE_KINDS

FOLDER = "collectives"
COLUMNS = ("kind", "ranks", "nodes", "bytes", "time_us")


def read_platform_curves(folder: Path, spec: PlatformSpec) -> MeasuredSystem | None:
    """All curves of a platform folder as one machine, or None where it keeps none."""
    timings: list[Timing] = []
    for path in sorted((folder / FOLDER).glob("*.csv")):
        timings += read_timings_csv(path)
    for path in sorted((folder / FOLDER).glob("*.json")):
        timings += _read_json(path)
    return measured_platform(timings, spec, str(folder / FOLDER)) if timings else None


def measured_platform(timings: Iterable[Timing], spec: PlatformSpec, provenance: str) -> MeasuredSystem:
    """The machine that the platform's own measurements describe."""
    rows: dict[tuple[str, GroupShape], list[Timing]] = {}
    for timing in timings:
        if timing.ranks > 1:
            shape = GroupShape(timing.ranks, timing.nodes, -(-timing.ranks // timing.nodes))
            kind = "all_to_all" if timing.kind == "all_to_allv" else timing.kind
            rows.setdefault((kind, shape), []).append(timing)
    shapes = NO_SHAPES if spec.host.synchronous else None  # the catalogue's curves are NCCL's
    curves = {
        key: Curve.fit([t.bytes for t in measured], [t.time_us for t in measured], shapes)
        for key, measured in rows.items()
    }
    nic = spec.nic
    return MeasuredSystem(
        spec.name, (spec.gpu.name,), spec.link.kind, spec.link.gbps, nic.kind if nic else "",
        nic.gbps if nic else 0.0, curves, provenance, own=True,
    )  # fmt: skip


def read_timings_csv(path: Path) -> list[Timing]:
    """Measured times from a CSV with the columns above (nodes may be missing)."""
    required = [name for name in COLUMNS if name != "nodes"]
    records = csv_records(read_text(path), str(path), required)
    return [_timing(row, f"{path}, line {line}") for line, row in records]


def write_timings_csv(path: Path, timings: Sequence[Timing]) -> None:
    """Write measured times, one row each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows([t.kind, t.ranks, t.nodes, f"{t.bytes:.0f}", f"{t.time_us:.4f}"] for t in timings)
    write_whole(path, text.getvalue())


def _read_json(path: Path) -> list[Timing]:
    """A list of {kind, ranks, nodes?, bytes: […], time_us: […]}."""
    records = read_json(path, "correct or remove the file")
    timings: list[Timing] = []
    for i, record in enumerate(records if isinstance(records, list) else [records]):
        where = f"{path}, curve {i}"
        if not isinstance(record, dict) or not isinstance(record.get("bytes"), list):
            raise InputError(where, "not a curve", "give kind, ranks, bytes: […] and time_us: […]")
        if not isinstance(record.get("time_us"), list) or len(record["bytes"]) != len(record["time_us"]):
            raise InputError(where, "bytes and time_us differ in length", "give one time per size")
        pairs = zip(record["bytes"], record["time_us"], strict=True)
        timings += [_timing({**record, "bytes": b, "time_us": t}, where) for b, t in pairs]
    return timings


def _timing(row: Mapping[str, Any], where: str) -> Timing:
    kind = str(row.get("kind", "")).strip()
    if kind not in COLLECTIVE_KINDS:
        raise InputError(where, f"unknown collective {kind!r}", f"one of {', '.join(COLLECTIVE_KINDS)}")
    try:
        timing = Timing(
            kind, int(row["ranks"]), int(row.get("nodes") or 1), float(row["bytes"]), float(row["time_us"])
        )
    except (TypeError, ValueError, OverflowError, KeyError) as error:
        raise InputError(where, f"not a number ({error})", "correct the row") from None
    try:
        timing.check()
    except StepsightError as error:
        raise InputError(where, str(error), "correct or remove the row") from None
    return timing
