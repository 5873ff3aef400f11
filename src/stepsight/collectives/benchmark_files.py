"""One measured collective: what benchmark outputs and platform files are read into."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepsight.collectives.curve import Curve
from stepsight.collectives.measured import MeasuredSystem
from stepsight.collectives.roofline import GroupShape
from stepsight.documents import write_whole
from stepsight.errors import InputError, StepsightError
from stepsight.hardware.spec import PlatformSpec
from stepsight.inputs import check_limit, csv_records, read_text
from stepsight.program.job import COLLECTIVE_KINDS


@dataclass(frozen=True, slots=True)
class Timing:
    """One message size of one collective on one group, as it was measured."""

    kind: str
    ranks: int
    nodes: int
    bytes: float
    time_us: float

    def check(self) -> None:
        """Refuse what no benchmark can have measured."""
        if not (math.isfinite(self.bytes) and math.isfinite(self.time_us)):
            raise StepsightError("a size or time that is not a number")
        if self.time_us <= 0:
            raise StepsightError(
                f"a time of {self.time_us:g} µs for {self.bytes:g} bytes: nothing was measured"
            )
        if self.bytes <= 0:
            raise StepsightError(f"a message of {self.bytes:g} bytes")
        if self.ranks < 1 or self.nodes < 1 or self.nodes > self.ranks:
            raise StepsightError(f"a group of {self.ranks} ranks on {self.nodes} nodes")
        check_limit(self.ranks, "RANKS", "a group", "its number of ranks")


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """What one benchmark output holds, and what of it was left out and why."""

    timings: tuple[Timing, ...]
    skipped: tuple[str, ...] = ()
    gpu: str = field(default="")


_ROW = re.compile(
    r"(?:^|[\s:>])(?P<size>\d+)\s+(?P<count>\d+)\s+(?P<type>[a-z]\w*)\s+(?:(?P<redop>[a-z]\w*)\s+)?"
    r"(?:(?P<root>-?\d+)\s+)?(?P<numbers>[\d.][\d.eE+\-\s/NAna]*)$"
)
_STARTED_ROW = re.compile(r"^\s*\d+\s+\d+\s+(?:float|half|bfloat16|double|u?int\d+|fp8\w*|[a-z]+\d*)\b")
_DEVICE = re.compile(r"#\s*Rank\s+\d+.*?\bon\s+(?P<host>\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(?P<gpu>.*\S)?")
_PROGRAM = re.compile(r"\b(?P<name>[a-z_]+)_perf\b")
_UNITS = re.compile(r"#\s*\((?P<size>[KMG]?i?B)\)\s+\(elements\).*?\((?P<time>us|ms|s)\)")

KIND_OF_PROGRAM = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all", "alltoallv": "all_to_allv",
    "broadcast": "broadcast", "reduce": "reduce", "sendrecv": "send_recv", "send_recv": "send_recv",
}  # fmt: skip
SIZE_UNITS = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
TIME_UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}
DISAGREEMENT = 0.10
"""nccl-tests rounds to two digits; a bandwidth off by more than this is in another unit."""
LEAST_WHOLE_TIME = 10_000
"""Times are printed with a decimal point below this many µs; no group has a root as large."""
LEAST_GBPS = 0.5
"""Bandwidths below are rounded too coarsely to compare."""


def read_nccl_tests(
    path: Path, kind: str | None = None, ranks: int | None = None, nodes: int | None = None
) -> BenchmarkRun:
    """The measured times of one output, with what was left out.

    The collective comes from ``kind``, else from the output, else from the file's name; ranks
    and nodes from the list of devices, unless given.
    """
    text = read_text(path, errors="replace")
    lines = text.splitlines()
    devices = [match for line in lines if (match := _DEVICE.search(line))]
    ranks = ranks or len(devices)
    if not ranks:
        raise InputError(str(path), "does not list its devices", "say how many GPUs took part with --ranks")
    nodes = nodes or len({match["host"] for match in devices}) or 1
    kind = kind or _kind(text, path)
    units = _units(text, path)
    timings: list[Timing] = []
    skipped: list[str] = []
    for number, line in enumerate(lines, start=1):
        row = _ROW.search(line)
        if row is None:
            if _STARTED_ROW.match(line):
                skipped.append(f"line {number} is cut short")
            continue
        try:
            timings += _row_timings(row, kind, ranks, nodes, units, f"{path}, line {number}")
        except InputError:
            raise
        except StepsightError as error:
            skipped.append(f"line {number}: {error}")
    if "Avg bus bandwidth" not in text:
        skipped.append("the output ends before the benchmark's summary: larger sizes may be missing")
    gpus = [match["gpu"] for match in devices if match["gpu"]]
    return _complete(path, timings, skipped, gpus[0] if gpus else "")


def _complete(path: Path, timings: list[Timing], skipped: list[str], gpu: str = "") -> BenchmarkRun:
    """The run, refused where no row of it could be read."""
    if not timings:
        reason = f" ({skipped[0]})" if skipped else ""
        raise InputError(
            str(path), f"no complete row of measured times{reason}", "run the benchmark to its end"
        )
    return BenchmarkRun(tuple(timings), tuple(skipped), gpu)


def _row_timings(
    row: re.Match[str], kind: str, ranks: int, nodes: int, units: tuple[float, float], where: str
) -> list[Timing]:
    """Out-of-place and in-place times of one row; each is time, algbw, busbw and perhaps #wrong."""
    numbers = row["numbers"].split()
    if row["root"] and int(row["root"]) >= LEAST_WHOLE_TIME:  # outputs without a root column
        numbers.insert(0, row["root"])
    if len(numbers) in (6, 8):
        halves = [numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]]
    elif len(numbers) in (3, 4):
        halves = [numbers]
    else:
        raise StepsightError(f"{len(numbers)} figures where 3, 4, 6 or 8 belong: the row is cut short")
    size, (size_unit, time_unit) = float(row["size"]), units
    if size == 0:
        raise StepsightError("a message of 0 bytes")
    found = []
    for half in halves:
        try:
            time, algbw = float(half[0]), float(half[1])
        except ValueError as error:
            raise StepsightError(f"not a number ({error})") from None
        timing = Timing(kind, ranks, nodes, size * size_unit, time * time_unit)
        timing.check()
        implied = timing.bytes / timing.time_us / 1e3
        if algbw >= LEAST_GBPS and abs(implied / algbw - 1) > DISAGREEMENT:
            raise InputError(
                where,
                f"mixed units: {size:g} bytes in {time:g} µs are {implied:.3g} GB/s, the row says {algbw:g}",
                "the table must be in bytes, µs and GB/s throughout",
            )
        found.append(timing)
    return found


def _units(text: str, path: Path) -> tuple[float, float]:
    units = {(match["size"], match["time"]) for match in _UNITS.finditer(text)}
    if len(units) > 1:
        raise InputError(str(path), f"mixed units: {sorted(units)}", "import each table from its own file")
    size, time = next(iter(units), ("B", "us"))
    return SIZE_UNITS[size], TIME_UNITS[time]


def _kind(text: str, path: Path) -> str:
    programs = {match["name"] for match in _PROGRAM.finditer(text)} & set(KIND_OF_PROGRAM)
    if len(programs) > 1:
        raise InputError(
            str(path), f"holds several collectives ({', '.join(sorted(programs))})", "import one run per file"
        )
    if programs:
        return KIND_OF_PROGRAM[programs.pop()]
    name = path.stem.lower().replace("-", "_")
    for program in sorted(KIND_OF_PROGRAM, key=len, reverse=True):
        if program in name:
            return KIND_OF_PROGRAM[program]
    raise InputError(
        str(path),
        "does not say which collective it measured",
        "name it: stepsight collective all_reduce --import …",
    )


_PARAM_ROW = re.compile(
    r"COMMS-RES-(?P<kind>[a-z_0-9]+?)(?:-(?P<dtype>[a-z]\w*))?\s+(?P<numbers>\d[\d.\s]*)$"
)
_WORLD = re.compile(r"world[_ ]?size\W{1,3}(?P<ranks>\d+)", re.IGNORECASE)

KIND_OF_PARAM = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "all_gather_base": "all_gather",
    "reduce_scatter": "reduce_scatter", "reduce_scatter_base": "reduce_scatter", "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all", "all_to_allv": "all_to_allv", "broadcast": "broadcast",
    "reduce": "reduce",
}  # fmt: skip
PARAM_COLUMNS = 9
"""size, elements per rank, p50, p75, p95, min, max, algbw, busbw; TFLOP/s may follow."""


def read_param_comms(path: Path, ranks: int | None = None, nodes: int | None = None) -> BenchmarkRun:
    """The median times over ranks, with what was left out."""
    text = read_text(path, errors="replace")
    world = _WORLD.search(text)
    ranks = ranks or (int(world["ranks"]) if world else 0)
    if not ranks:
        raise InputError(str(path), "does not say how many ranks took part", "give --ranks")
    check_limit(ranks, "RANKS", str(path), "its number of ranks")
    timings: list[Timing] = []
    skipped: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        row = _PARAM_ROW.search(line)
        if row is None:
            continue
        kind = KIND_OF_PARAM.get(row["kind"])
        numbers = row["numbers"].split()
        if kind is None:
            skipped.append(f"line {number}: no model for {row['kind']}")
        elif len(numbers) < PARAM_COLUMNS:
            skipped.append(f"line {number} is cut short")
        else:
            try:
                timing = Timing(kind, ranks, nodes or 1, float(numbers[0]), float(numbers[2]))
                timing.check()
            except (StepsightError, ValueError) as error:
                skipped.append(f"line {number}: {error}")
            else:
                timings.append(timing)
    return _complete(path, timings, skipped)


FOLDER = "collectives"
COLUMNS = ("kind", "ranks", "nodes", "bytes", "time_us")


def read_platform_curves(folder: Path, spec: PlatformSpec) -> MeasuredSystem | None:
    """All curves of a platform folder as one machine, or None where it keeps none."""
    timings: list[Timing] = []
    for path in sorted((folder / FOLDER).glob("*.csv")):
        timings += read_timings_csv(path)
    return measured_platform(timings, spec, str(folder / FOLDER)) if timings else None


def measured_platform(timings: Iterable[Timing], spec: PlatformSpec, provenance: str) -> MeasuredSystem:
    """The machine that the platform's own measurements describe."""
    rows: dict[tuple[str, GroupShape], list[Timing]] = {}
    for timing in timings:
        if timing.ranks > 1:
            shape = GroupShape(timing.ranks, timing.nodes, -(-timing.ranks // timing.nodes))
            kind = "all_to_all" if timing.kind == "all_to_allv" else timing.kind
            rows.setdefault((kind, shape), []).append(timing)
    curves = {
        key: Curve.fit([t.bytes for t in measured], [t.time_us for t in measured])
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
