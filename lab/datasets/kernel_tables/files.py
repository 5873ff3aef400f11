"""Published tables of kernels as files: CSV or parquet in, times of every row out."""

from __future__ import annotations

from pathlib import Path

from lab.datasets.kernel_tables.parquet import read_parquet
from lab.datasets.kernel_tables.rows import rows_of
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.prediction.kernel_times import Table, TableTimes
from stepsight.prediction.kernel_times import read_table as read_csv_table

OPERATOR_COLUMNS = frozenset({"gpu", "op", "mp", "b", "l", "h", "dim"})
"""The layout whose rows are operators of several kernels (`megatron`)."""


def read_table(path: Path) -> Table:
    """The columns of a CSV or parquet file."""
    return read_parquet(path) if path.suffix == ".parquet" else read_csv_table(path)


def time_table(table: Table, where: str = "table", gpu: str | None = None) -> TableTimes:
    """Times of all rows of a published table, in its order."""
    if set(table) >= OPERATOR_COLUMNS:
        from lab.datasets.kernel_tables.operator_times import operator_times

        return operator_times(table, where)
    n = max((len(column) for column in table.values()), default=0)
    times = TableTimes(n)
    models: dict[str, KernelModels] = {}
    for rows in rows_of(table, where, gpu):
        if rows.gpu not in models:
            models[rows.gpu] = KernelModels.for_gpu(load_gpu(rows.gpu))
        answer = models[rows.gpu].estimate_batch(rows.batch)
        times.put(rows.batch, answer, models[rows.gpu], as_events=rows.timed_by_events)
    return times
