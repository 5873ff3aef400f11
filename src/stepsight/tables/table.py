"""Embedding tables as a sharding plan sees them: how big, how often asked, by which indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepsight.dtypes import dtype_bytes
from stepsight.errors import InputError
from stepsight.tables.indices.distributions import IndexDistribution

UNIFORM = IndexDistribution.uniform()
DEVICE, UVM, UVM_CACHING, SSD = "device", "uvm", "uvm_caching", "ssd"
PLACEMENTS = (DEVICE, UVM, UVM_CACHING, SSD)
CACHED = (UVM_CACHING, SSD)
"""Placements with a cache on the device."""
CACHE_SHARE = 0.2
"""FBGEMM's default cache_load_factor (fbgemm_gpu 1.x)."""

MOST_BAG_SPREAD = 3.0
"""Beyond it the longest bag of a batch would hold most of its lookups."""

OPTIMIZER_STATE: dict[str, tuple[float, float]] = {
    "none": (0.0, 0.0),
    "sgd": (0.0, 0.0),
    "adagrad": (1.0, 0.0),
    "rowwise_adagrad": (0.0, 1.0),
    "adam": (2.0, 0.0),
    "adamw": (2.0, 0.0),
    "partial_rowwise_adam": (1.0, 1.0),
    "lamb": (2.0, 0.0),
    "partial_rowwise_lamb": (1.0, 1.0),
}
"""What an optimizer keeps: fp32 values per weight, and fp32 values per row (their definitions)."""
ROW_DTYPES = ("fp32", "fp16", "bf16", "fp8", "int8", "int4")
"""Element types of rows."""
_SCALE_BYTES = {"fp8": 4, "int8": 8, "int4": 4}
"""Of a row's scale and offset: two fp32 values with int8, two fp16 with int4 (FBGEMM's row-wise
quantised formats), one fp32 scale with fp8."""


def row_bytes(dtype: str, dim: int) -> float:
    """Bytes of one row, with the scale of a quantised one."""
    return (
        dim / 2 + _SCALE_BYTES[dtype]
        if dtype == "int4"
        else (dim * dtype_bytes(dtype) + _SCALE_BYTES.get(dtype, 0))
    )


def optimizer_state(optimizer: str) -> tuple[float, float]:
    """fp32 values of state per element and per row of a fused update."""
    try:
        return OPTIMIZER_STATE[optimizer]
    except KeyError:
        raise InputError(
            "optimizer", f"unknown optimizer {optimizer!r}", f"one of {', '.join(OPTIMIZER_STATE)}"
        ) from None


@dataclass(frozen=True, slots=True)
class Table:
    """One embedding table with pooled lookups.

    ``pooling`` is the mean number of lookups per sample and feature, ``bag_spread`` how far bags differ
    from it (standard deviation of ln(lookups); 0: all identical); ``features`` is how many
    sparse features share the table, each with its own pooled output. ``indices`` says which
    rows the lookups hit. ``weighted``: every lookup has a weight of its own. ``placement``: rows on the
    device; in host memory, read and written across the bus (uvm); or there with a cache on the device that
    holds ``cache_share`` of them (uvm_caching), as FBGEMM's managed tables; or on a drive with such a cache
    (ssd), as its SSD tables.
    """

    name: str
    rows: int
    dim: int
    pooling: float
    indices: IndexDistribution = UNIFORM
    dtype: str = "fp32"
    features: int = 1
    weighted: bool = False
    placement: str = DEVICE
    cache_share: float = CACHE_SHARE
    bag_spread: float = 0.0

    def __post_init__(self) -> None:
        rules = {
            "rows": (self.rows >= 1, "a table has at least one row"),
            "dim": (self.dim >= 1, "a table has at least one column"),
            "pooling": (0 <= self.pooling < float("inf"), "give the mean lookups per sample, 0 or more"),
            "bag_spread": (0 <= self.bag_spread <= MOST_BAG_SPREAD, f"between 0 and {MOST_BAG_SPREAD:g}"),
            "features": (self.features >= 1, "at least one feature uses a table"),
            "dtype": (self.dtype in ROW_DTYPES, f"one of {', '.join(ROW_DTYPES)}"),
            "placement": (self.placement in PLACEMENTS, f"one of {', '.join(PLACEMENTS)}"),
            "cache_share": (0 < self.cache_share <= 1, "above 0, at most 1"),
        }
        for name, (good, fix) in rules.items():
            if not good:
                raise InputError(f"table {self.name!r}", f"{name} is {getattr(self, name)!r}", fix)

    @property
    def device_share(self) -> float:
        """How much of its weights lie on the device."""
        return {DEVICE: 1.0, UVM: 0.0}.get(self.placement, self.cache_share)

    @property
    def weight_bytes(self) -> float:
        return self.rows * row_bytes(self.dtype, self.dim)

    @property
    def lookups(self) -> float:
        """Rows read per sample."""
        return self.pooling * self.features

    @property
    def index_words(self) -> float:
        """8-byte words per sample that name the rows: an index a lookup, and half a word for its weight."""
        return self.lookups * (1.5 if self.weighted else 1.0)

    @property
    def output_columns(self) -> int:
        """Pooled output values per sample."""
        return self.dim * self.features

    def state_bytes(self, optimizer: str, rows: int | None = None, columns: int | None = None) -> float:
        """Optimizer state of the table, or of a part of it."""
        per_weight, per_row = optimizer_state(optimizer)
        part_rows = self.rows if rows is None else rows
        part_columns = self.dim if columns is None else columns
        return 4.0 * part_rows * (per_weight * part_columns + per_row)


def check_tables(tables: Sequence[Table], where: str = "tables") -> None:
    """Names must distinguish tables: a plan refers to them by name."""
    if not tables:
        raise InputError(where, "there is no embedding table", "give at least one [[tables]] entry")
    seen: set[str] = set()
    for table in tables:
        if table.name in seen:
            raise InputError(where, f"two tables are named {table.name!r}", "give each its own name")
        seen.add(table.name)
