"""Read what nccl-tests and rccl-tests print.

Rows are recognised by their shape, so interleaved NCCL log lines and launcher prefixes do no
harm. The header's units are read, and every row's bandwidth must agree with its size and time:
that is how a table in other units, or cut in the middle of a number, shows itself.
"""

from __future__ import annotations

import re
from pathlib import Path

from stepsight.collectives.files.timings import BenchmarkRun, Timing
from stepsight.errors import InputError, StepsightError
from stepsight.inputs import read_text

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


def is_nccl_tests(text: str) -> bool:
    """Whether this looks like the output of nccl-tests or rccl-tests."""
    return "algbw" in text and "busbw" in text


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
    size_unit, time_unit = _units(text, path)
    timings: list[Timing] = []
    skipped: list[str] = []
    for number, line in enumerate(lines, start=1):
        row = _ROW.search(line)
        if row is None:
            if _STARTED_ROW.match(line):
                skipped.append(f"line {number} is cut short")
            continue
        try:
            timings += _row_timings(row, kind, ranks, nodes, (size_unit, time_unit))
        except _UnitError as error:
            raise InputError(
                f"{path}, line {number}", str(error), "the table must be in bytes, µs and GB/s throughout"
            ) from None
        except StepsightError as error:
            skipped.append(f"line {number}: {error}")
    if not timings:
        reason = f" ({skipped[0]})" if skipped else ""
        raise InputError(
            str(path), f"no complete row of measured times{reason}", "run the benchmark to its end"
        )
    if "Avg bus bandwidth" not in text:
        skipped.append("the output ends before the benchmark's summary: larger sizes may be missing")
    gpus = [match["gpu"] for match in devices if match["gpu"]]
    return BenchmarkRun(tuple(timings), tuple(skipped), gpus[0] if gpus else "")


class _UnitError(Exception):
    pass


def _row_timings(
    row: re.Match[str], kind: str, ranks: int, nodes: int, units: tuple[float, float]
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
            raise _UnitError(
                f"mixed units: {size:g} bytes in {time:g} µs are {implied:.3g} GB/s, the row says {algbw:g}"
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
