"""Reading what others wrote: bounded in size and depth, every number in range, failures with a fix.

Limits lie far above real workloads, traces and tables and far below what a broken file asks. Each can be
raised for one command by an environment variable: ``STEPSIGHT_LIMIT_<NAME>=value``.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from stepsight.errors import InputError

PREFIX = "STEPSIGHT_LIMIT_"
LIMITS: Mapping[str, int] = {
    "TEXT_BYTES": 1 << 28,  # a CSV, JSON or TOML file, the output of a benchmark, a captured step
    "EXPANDED_BYTES": 8 << 30,  # a trace or index file, and what a gzip, tar, zip, npz or parquet unpacks to
    "EXPANSION": 1000,  # how many times larger than the packed file; real traces reach about 60
    "EVENTS": 50_000_000,  # events of one trace
    "CELLS": 500_000_000,  # rows times columns of a parquet table
    "RANKS": 1 << 20,
    "LAYERS": 20_000,
    "TABLES": 200_000,
    "SIZE": 10**12,  # a batch, a dimension, a count of rows
}


def limit(name: str) -> int:
    """The limit of that name, as shipped or as the environment says."""
    given = os.environ.get(PREFIX + name)
    if given is None:
        return LIMITS[name]
    try:
        value = int(float(given))
    except (ValueError, OverflowError):
        raise InputError(f"{PREFIX}{name}={given}", "is not a number", "give a whole number") from None
    if value < 1:
        raise InputError(f"{PREFIX}{name}={given}", "must be above zero", "give a whole number")
    return value


def check_limit(value: float, name: str, where: str, what: str) -> None:
    """Refuse a value above its limit, naming the way to raise it."""
    most = limit(name)
    if value > most:
        shown = f"{value:,.0f}" if value < 10**30 else "larger than 10^30"
        raise InputError(
            where, f"{what} is {shown}; at most {most:,}",
            f"correct it, or set {PREFIX}{name} higher",
        )  # fmt: skip


_CHUNK = 1 << 22
LARGEST_FIGURE = 1e15
"""No measured or fitted figure is larger."""


def is_there(path: str | Path) -> bool:
    """Whether a file or folder has this path; none has a name longer than a file system takes."""
    try:
        return Path(path).exists()
    except OSError:
        return False


def read_bytes(path: str | Path, fix: str = "check the path", most: str = "TEXT_BYTES") -> bytes:
    """A file's content, no more than the limit called ``most``; a pipe or device is counted as it is read."""
    path = Path(path)
    try:
        about = path.stat()
        check_limit(about.st_size, most, str(path), "its size in bytes")
        with path.open("rb") as file:
            content = file.read(-1 if stat.S_ISREG(about.st_mode) else limit(most) + 1)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", fix) from None
    check_limit(len(content), most, str(path), "its size in bytes")
    return content


def read_text(path: str | Path, fix: str = "check the path", errors: str = "strict") -> str:
    """A text file in UTF-8, whole. ``errors="replace"`` takes other encodings with their letters lost."""
    try:
        text = read_bytes(path, fix).decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"is not UTF-8 text ({error.reason})", "save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: str | Path, fix: str) -> Any:
    """The value of a JSON file."""
    return json_of(read_text(path, fix), str(path), fix)


def json_of(text: str | bytes, where: str, fix: str) -> Any:
    """The value of a JSON text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(where, f"is not JSON: {error}", fix) from None
    except RecursionError:
        raise InputError(where, "is nested too deeply to be real", fix) from None


def read_figures(path: str | Path, fix: str) -> dict[str, Any]:
    """A JSON object of measured or fitted figures: every number finite and no larger than figures are, every
    list of numbers or of lists of them."""
    content = read_json(path, fix)
    if not isinstance(content, dict):
        raise InputError(str(path), "is damaged (it is no JSON object)", fix)
    _check_figures(content, str(path), "", fix)
    return content


def _check_figures(value: Any, where: str, field: str, fix: str) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_figures(inner, where, f"{field}.{key}" if field else str(key), fix)
    elif isinstance(value, list):
        numbers = any(isinstance(inner, int | float) for inner in value)
        for inner in value:
            if numbers and (isinstance(inner, bool) or not isinstance(inner, int | float)):
                raise InputError(f"{where}: {field}", f"holds {inner!r} among numbers", fix)
            _check_figures(inner, where, field, fix)
    elif isinstance(value, float) and not abs(value) < LARGEST_FIGURE:
        raise InputError(f"{where}: {field}", f"is damaged (it holds {value:g})", fix)


def csv_rows(text: str, where: str, delimiter: str = ",") -> list[list[str]]:
    """The rows of a CSV text."""
    try:
        return list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error as error:
        raise InputError(where, f"is not CSV ({error})", "check its quotes and line ends") from None


def csv_records(text: str, where: str, required: Iterable[str]) -> list[tuple[int, Mapping[str, str]]]:
    """Line number and fields by column name, separated by commas, else semicolons or tabs; every row has the
    header's columns."""
    first = text.partition("\n")[0]
    rows = csv_rows(text, where, next((c for c in ",;\t" if c in first), ","))
    header = [name.strip() for name in rows[0]] if rows else []
    missing = [name for name in required if name not in header]
    if missing:
        raise InputError(
            where, f"has no column {', '.join(missing)}", f"the columns are {', '.join(required)}"
        )
    found: list[tuple[int, Mapping[str, str]]] = []
    for line, row in enumerate(rows[1:], start=2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            raise InputError(
                f"{where}, line {line}", f"has {len(row)} fields, not {len(header)}", "correct the row"
            )
        found.append((line, {name: cell.strip() for name, cell in zip(header, row, strict=True)}))
    return found


def number(
    value: object, where: str, *, least: float = -math.inf, most: float = math.inf, fix: str = "give a number"
) -> float:
    """A finite number in a range, from text or a number: what every figure that others wrote goes through."""
    try:
        found = math.nan if isinstance(value, bool) else float(str(value).replace("_", ""))
    except ValueError:
        found = math.nan
    if math.isnan(found) and not isinstance(value, float):
        raise InputError(where, f"is {value!r}, not a number", fix)
    if not math.isfinite(found):
        raise InputError(where, f"is {value}", fix)
    if not least <= found <= most:
        raise InputError(where, f"is {value}, not {_span(least, most)}", fix)
    return found


def _span(least: float, most: float) -> str:
    if most == math.inf:
        return f"at least {least:g}"
    return f"at most {most:g}" if least == -math.inf else f"between {least:g} and {most:g}"


def whole(value: object, where: str, *, least: int = 1, most: int | None = None) -> int:
    """A whole number in range from text or a number."""
    found = number(value, where, fix="give a whole number")
    top = limit("SIZE") if most is None else most
    if found != int(found) or not least <= found <= top:
        raise InputError(where, f"is {value}", f"give a whole number from {least:,} to {top:,}")
    return int(found)


def copy_expanded(packed: IO[bytes], out: IO[bytes], where: str, packed_bytes: int) -> None:
    """Unpack a compressed stream of ``packed_bytes``, no further than its limits."""
    most = min(limit("EXPANDED_BYTES"), max(limit("EXPANSION") * packed_bytes, 1 << 26))
    written = 0
    while chunk := packed.read(_CHUNK):
        written += len(chunk)
        if written > most:
            raise InputError(
                where, f"unpacks to more than {most:,} bytes from {packed_bytes:,}",
                f"check the file, or set {PREFIX}EXPANDED_BYTES and {PREFIX}EXPANSION higher",
            )  # fmt: skip
        out.write(chunk)


def unpacked(packed: IO[bytes], where: str, packed_bytes: int) -> IO[bytes]:
    """The whole stream in a temporary file without a name."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - memory maps may keep it alive
    copy_expanded(packed, file, where, packed_bytes)
    file.seek(0)
    return file


def compiled(pattern: str, where: str) -> re.Pattern[str]:
    """The compiled regular expression."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(where, f"{pattern!r} is not a regular expression: {error}", "correct it") from None
