"""Kernels as columns: one `Batch` per family and dtype, so that models answer with array arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsight.dtypes import DTYPE_BYTES
from stepsight.estimate import FloatArray, IntArray
from stepsight.kernels.families import FAMILIES
from stepsight.program.job import Kernel

UNKNOWN_DTYPE_BYTES = 4
"""A dtype nobody has heard of is taken to be as wide as fp32."""

_NEUTRAL = {
    "padding": 0.0, "causal": 0.0, "window": 0.0, "indexed": 0.0, "flops": 0.0, "reordered": 0.0,
    "hottest": 0.0, "passes": 0.0,
}  # fmt: skip
"""What a size is when a kernel does not state it; 1 for all others."""

_FAMILY, _DTYPE, _NAME, _DIMS = map(attrgetter, ("family", "dtype", "name", "dims"))

_SAME_AS = {"kv_heads": "heads", "kv": "q", "kw": "kh", "w": "h", "write_bytes": "read_bytes"}
"""Sizes that, unless stated, equal another one (plain attention, square images, copies)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Kernels of one family and dtype: their sizes as columns, their names, their positions.

    ``names`` holds each kernel's own name (``linear``, ``bmm``, ``gelu`` …); the models map it
    to the variant they know. ``positions`` is where each stood in what the caller handed in.
    """

    family: str
    dtype: str
    dims: Mapping[str, FloatArray]
    names: Sequence[str]
    positions: IntArray

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def alike(self) -> bool:
        """Whether all kernels have one name."""
        return bool(self.names) and self.names.count(self.names[0]) == len(self.names)

    def take(self, rows: IntArray) -> Batch:
        """Some of the kernels, by their position within this batch."""
        dims = {key: column[rows] for key, column in self.dims.items()}
        names = [self.names[i] for i in rows.tolist()] if self.names else self.names
        return Batch(self.family, self.dtype, dims, names, self.positions[rows])

    def parts(self, groups: Iterable[IntArray]) -> Iterator[tuple[IntArray, Batch]]:
        """The kernels group by group; names that are all alike are not looked up one by one."""
        alike = self.alike
        for rows in groups:
            dims = {key: column[rows] for key, column in self.dims.items()}
            names = [self.names[0]] * len(rows) if alike else [self.names[i] for i in rows.tolist()]
            yield rows, Batch(self.family, self.dtype, dims, names, self.positions[rows])

    def where_name(self, test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """Which kernels' names pass a test; each distinct name is tested once."""
        if self.alike:
            return np.full(len(self), test(self.names[0]))
        passed = {name: test(name) for name in dict.fromkeys(self.names)}
        if len(set(passed.values())) <= 1:
            return np.full(len(self), next(iter(passed.values()), False))
        return np.fromiter((passed[name] for name in self.names), dtype=bool, count=len(self))

    def as_family(self, family: str) -> Batch:
        """The same sizes read as another family's (a gradient's as those of its forward)."""
        if family == self.family:
            return self
        return Batch(family, self.dtype, self.dims, self.names, self.positions)

    @property
    def element_bytes(self) -> FloatArray:
        width = DTYPE_BYTES.get(self.dtype, UNKNOWN_DTYPE_BYTES)
        return np.full(len(self), float(width))

    @property
    def known(self) -> bool:
        return self.family in FAMILIES

    @property
    def flops(self) -> FloatArray:
        """Arithmetic the kernels cannot avoid."""
        return FAMILIES[self.family].flops(self.dims)

    @property
    def bytes(self) -> FloatArray:
        """Traffic to memory the kernels cannot avoid."""
        return FAMILIES[self.family].bytes(self.dims, self.element_bytes)

    @classmethod
    def of(
        cls, family: str, dtype: str, dims: Mapping[str, FloatArray], names: Sequence[str] | str = ""
    ) -> Batch:
        """A batch straight from columns; sizes that are missing get their neutral value."""
        n = max((len(np.atleast_1d(column)) for column in dims.values()), default=0)
        given = {
            key: np.broadcast_to(np.asarray(column, dtype=np.float64), n) for key, column in dims.items()
        }
        labels = [names] * n if isinstance(names, str) else names
        return cls(family, dtype, complete(family, dtype, given, n), labels, np.arange(n))


def complete(family: str, dtype: str, dims: Mapping[str, FloatArray], n: int) -> dict[str, FloatArray]:
    """All sizes of the family, the missing ones filled in, none below zero or not finite."""
    wanted = FAMILIES[family].dims if family in FAMILIES else tuple(dims)
    width = DTYPE_BYTES.get(dtype, UNKNOWN_DTYPE_BYTES)
    full: dict[str, FloatArray] = {}
    for key in wanted:
        column = dims.get(key)
        if column is None and key == "read_bytes" and "elements" in dims:
            column = dims["elements"] * width
        if column is None and key == "elements" and "read_bytes" in dims:
            column = dims["read_bytes"] / width
        if column is None and key in _SAME_AS:
            column = full.get(_SAME_AS[key], dims.get(_SAME_AS[key]))
        if column is None:
            column = np.full(n, _NEUTRAL.get(key, 1.0))
        full[key] = _sound(column)
    return full


def _sound(column: FloatArray) -> FloatArray:
    """The column, copied only where a value is below zero or not finite."""
    if len(column) and column.min() >= 0 and column.max() < np.inf:  # both fail where a value is not a number
        return column
    return np.maximum(np.nan_to_num(column, nan=1.0, posinf=1e18), 0.0)


def batches(kernels: Sequence[Kernel]) -> Iterator[Batch]:
    """Sort kernels into one batch per family and dtype."""
    for (family, dtype), positions in _kinds(kernels).items():
        alike = len(positions) == len(kernels)
        members = kernels if alike else [kernels[i] for i in positions]
        dims = complete(family, dtype, _columns(members), len(members))
        at = np.arange(len(members)) if alike else np.array(positions, dtype=np.int64)
        yield Batch(family, dtype, dims, list(map(_NAME, members)), at)


def _kinds(kernels: Sequence[Kernel]) -> dict[tuple[str, str], Sequence[int]]:
    """Where the kernels of each family and dtype stand."""
    families, dtypes = set(map(_FAMILY, kernels)), set(map(_DTYPE, kernels))
    if len(families) == len(dtypes) == 1:
        return {(families.pop(), dtypes.pop()): range(len(kernels))}
    groups: dict[tuple[str, str], list[int]] = {}
    for i, kernel in enumerate(kernels):
        groups.setdefault((kernel.family, kernel.dtype), []).append(i)
    return {**groups}


def _columns(members: Sequence[Kernel]) -> dict[str, FloatArray]:
    uniform = _uniform_columns(members)
    return _mixed_columns(members) if uniform is None else uniform


def _uniform_columns(members: Sequence[Kernel]) -> dict[str, FloatArray] | None:
    """The usual case: all kernels of a family state the same sizes in the same order."""
    order = [key for key, _ in members[0].dims]
    flat: list[Any] = list(chain.from_iterable(chain.from_iterable(map(_DIMS, members))))
    step = 2 * len(order)  # key, value, key, value …
    if len(flat) != step * len(members):
        return None
    if any(flat[2 * i :: step].count(key) != len(members) for i, key in enumerate(order)):
        return None
    return {key: np.array(flat[2 * i + 1 :: step], dtype=np.float64) for i, key in enumerate(order)}


def _mixed_columns(members: Sequence[Kernel]) -> dict[str, FloatArray]:
    names = sorted({key for kernel in members for key, _ in kernel.dims})
    columns = {name: np.full(len(members), np.nan) for name in names}
    for i, kernel in enumerate(members):
        for key, value in kernel.dims:
            columns[key][i] = value
    for name, column in columns.items():
        if name in _SAME_AS and _SAME_AS[name] in columns:
            columns[name] = np.where(np.isnan(column), columns[_SAME_AS[name]], column)
        else:
            columns[name] = np.where(np.isnan(column), _NEUTRAL.get(name, 1.0), column)
    return columns
