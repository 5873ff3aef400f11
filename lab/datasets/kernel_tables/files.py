"""Published tables of kernels as files: CSV or parquet."""

from __future__ import annotations

from pathlib import Path

from stepsight.errors import InputError
from stepsight.prediction.kernel_times import Table
from stepsight.prediction.kernel_times import read_table as read_csv_table

OPERATOR_COLUMNS = frozenset({"gpu", "op", "mp", "b", "l", "h", "dim"})
"""The layout whose rows are operators of several kernels (`megatron`)."""


def read_table(path: Path) -> Table:
    """The columns of a CSV or parquet file."""
    if path.suffix != ".parquet":
        return read_csv_table(path)
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(str(path), "reading parquet needs pyarrow", "pip install 'stepsight[fit]'") from None
    table = parquet.read_table(path)
    return {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
