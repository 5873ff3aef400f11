"""Parquet files of kernels, bounded in what they unpack to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.datasets.kernel_tables.rows import Table
from stepsight.errors import InputError
from stepsight.inputs import check_limit, limit

_ROWS_AT_ONCE = 1 << 16


def read_parquet(path: Path) -> Table:
    """The columns of a parquet file."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(
            str(path), "reading parquet needs pyarrow", "pip install 'stepsight[fit]', or give a CSV"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            batches = _batches(file, str(path))
            table = arrow.Table.from_batches(batches, file.schema_arrow)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise InputError(str(path), f"is not readable as parquet ({error})", "write it again") from None
    return {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}


def _batches(file: Any, where: str) -> list[Any]:
    """All rows, in pieces that cannot unpack beyond the limit: a value is no longer than its column."""
    about = file.metadata
    check_limit(about.num_rows * max(about.num_columns, 1), "CELLS", where, "its number of cells")
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    check_limit(sum(g.total_byte_size for g in groups), "EXPANDED_BYTES", where, "its unpacked size in bytes")
    columns = (g.column(i).total_uncompressed_size for g in groups for i in range(about.num_columns))
    longest = max(columns, default=1)
    at_once = min(max(limit("EXPANDED_BYTES") // max(longest, 1), 1), _ROWS_AT_ONCE)
    batches, total = [], 0
    for batch in file.iter_batches(batch_size=at_once):
        total += batch.nbytes
        check_limit(total, "EXPANDED_BYTES", where, "its unpacked size in bytes")
        batches.append(batch)
    return batches
