"""Tables of kernels as files: CSV or parquet in, the same rows with their times out."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from stepsight.documents import write_whole
from stepsight.errors import InputError
from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.hardware.gpus import load_gpu
from stepsight.hardware.precision import NEVER_EMULATED, emulated, has_units, lack, substitute
from stepsight.hardware.spec import GpuSpec
from stepsight.inputs import csv_rows, read_text
from stepsight.kernels.models import KernelModels
from stepsight.kernels.notes import joined
from stepsight.kernels.roofline import TENSOR_CORE_FAMILIES
from stepsight.prediction.kernel_tables.parquet import read_parquet
from stepsight.prediction.kernel_tables.rows import Rows, Table, rows_of

OPERATOR_COLUMNS = frozenset({"gpu", "op", "mp", "b", "l", "h", "dim"})
"""The layout whose rows are operators of several kernels (`megatron`)."""
RENAMED = {"time_us": "measured_time_us"}
"""A measured table's own time stands beside the answer; other columns of the answer's names get given_…"""


def read_table(path: Path) -> Table:
    """The columns of a CSV or parquet file."""
    if not path.is_file():
        raise InputError(str(path), "no such file", "give a CSV or parquet file of kernels")
    if path.suffix == ".parquet":
        return read_parquet(path)
    rows = csv_rows(read_text(path), str(path))
    if len(rows) < 2:
        raise InputError(str(path), "has no rows", "the first line names the columns")
    header, body = rows[0], rows[1:]
    short = next((i for i, row in enumerate(body) if len(row) != len(header)), None)
    if short is not None:
        raise InputError(
            f"{path}, line {short + 2}", f"{len(body[short])} fields, not {len(header)}", "correct the row"
        )
    return dict(zip(header, map(list, zip(*body, strict=True)), strict=True))


class TableTimes:
    """What the models say about every row of a table."""

    def __init__(self, n: int) -> None:
        self.time_us: FloatArray = np.full(n, np.nan)
        self.kernel_us: FloatArray = np.full(n, np.nan)
        self.spread: FloatArray = np.zeros(n)
        self.source: list[str] = [Source.DEFAULT.label] * n
        self.note: list[str] = [""] * n

    def put(self, rows: Rows, answer: Estimates, models: KernelModels) -> None:
        """Answers of one group; a table timed by events gets what the events would read."""
        at = rows.batch.positions
        self.kernel_us[at] = answer.time_us
        self.time_us[at] = answer.time_us
        if rows.timed_by_events:
            self.time_us[at] = models.reading_us(rows.batch, answer.time_us)
        self.spread[at] = answer.spread
        for i, position in enumerate(at.tolist()):
            self.source[position] = Source(int(answer.source[i])).label
            self.note[position] = answer.notes.get(i, "")

    def say(self, rows: Rows, said: str) -> None:
        """Puts a note before what the rows of one group say already."""
        for position in rows.batch.positions.tolist() if said else ():
            self.note[position] = joined(said, self.note[position])


def time_table(table: Table, where: str = "table", gpu: str | None = None) -> TableTimes:
    """Times of all rows of a table, in its order."""
    if set(table) >= OPERATOR_COLUMNS:
        from stepsight.prediction.kernel_tables.operator_times import operator_times

        return operator_times(table, where)
    n = max((len(column) for column in table.values()), default=0)
    times = TableTimes(n)
    models: dict[str, KernelModels] = {}
    for rows in rows_of(table, where, gpu):
        if rows.gpu not in models:
            models[rows.gpu] = KernelModels.for_gpu(load_gpu(rows.gpu))
        answer = models[rows.gpu].estimate_batch(rows.batch, rows.stacks)
        times.put(rows, answer, models[rows.gpu])
        times.say(rows, _without_units(rows, models[rows.gpu].spec))
    return times


def _without_units(rows: Rows, gpu: GpuSpec) -> str:
    """What to say of rows in a type that the GPU has no units for."""
    dtype = rows.batch.dtype
    if rows.batch.family not in TENSOR_CORE_FAMILIES or has_units(gpu, dtype):
        return ""
    if dtype in NEVER_EMULATED:
        return f"{lack(gpu, dtype)}, so this does not run; {substitute(gpu, dtype)}"
    return emulated(gpu, dtype)


def write_table(path: Path, table: Table, times: TableTimes) -> None:
    """The table with its times as a CSV file."""
    write_whole(path, table_text(table, times))


def table_text(table: Table, times: TableTimes) -> str:
    """The table with its times as CSV."""
    out = _joined(table, _columns(times))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(out)
    writer.writerows(zip(*out.values(), strict=True))
    return text.getvalue()


def timed_rows(table: Table, times: TableTimes) -> list[dict[str, object]]:
    """The table with its times, a mapping a row, times as numbers."""
    numbers = {"time_us": times.time_us, "kernel_us": times.kernel_us, "spread": times.spread}
    known = {key: [None if math.isnan(v) else float(v) for v in column] for key, column in numbers.items()}
    out = _joined(table, {**_columns(times), **known})
    return [dict(zip(out, row, strict=True)) for row in zip(*out.values(), strict=True)]


def _joined(table: Table, answer: Mapping[str, Sequence[object]]) -> dict[str, Sequence[object]]:
    """The table's own columns, then time_us, kernel_us, source, spread and note."""
    own = {
        (RENAMED.get(key, f"given_{key}") if key in answer else key): list(column)
        for key, column in table.items()
    }
    return {**own, **answer}


def _columns(times: TableTimes) -> Mapping[str, Sequence[object]]:
    return {
        "time_us": [f"{t:.4f}" for t in times.time_us],
        "kernel_us": [f"{t:.4f}" for t in times.kernel_us],
        "source": times.source,
        "spread": [f"{s:.3f}" for s in times.spread],
        "note": times.note,
    }
