"""Kernels as columns: one `Batch` per family and dtype, so that models answer with array arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsight.dtypes import DTYPE_BYTES
from stepsight.estimate import Estimates, FloatArray, IntArray
from stepsight.kernels.families import FAMILIES, FLASH_BACKWARD, PRODUCTS
from stepsight.program.job import Kernel
from stepsight.program.variants import Kind, classify

UNKNOWN_DTYPE_BYTES = 4
"""A dtype nobody has heard of is taken to be as wide as fp32."""

_NEUTRAL = {
    "padding": 0.0, "causal": 0.0, "window": 0.0, "indexed": 0.0, "flops": 0.0, "reordered": 0.0,
    "passes": 0.0, "run": 0.0, "shared": 0.0,
}  # fmt: skip
"""What a size is when a kernel does not state it; 1 for all others."""

_FAMILY, _DTYPE, _KIND, _DIMS = map(attrgetter, ("family", "dtype", "kind", "dims"))

_SAME_AS = {"kv_heads": "heads", "kv": "q", "kw": "kh", "w": "h", "write_bytes": "read_bytes"}
"""Sizes that, unless stated, equal another one (plain attention, square images, copies)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Kernels of one family and dtype: their sizes as columns, their kinds, their positions.

    ``kinds`` holds each kernel's variant and role. ``positions`` is where each stood in what the caller
    handed in.
    """

    family: str
    dtype: str
    dims: Mapping[str, FloatArray]
    kinds: Sequence[Kind]
    positions: IntArray

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def uniform(self) -> bool:
        """Whether all kernels are of one kind."""
        return bool(self.kinds) and self.kinds.count(self.kinds[0]) == len(self.kinds)

    def take(self, rows: IntArray) -> Batch:
        """Some of the kernels, by their position within this batch."""
        dims = {key: column[rows] for key, column in self.dims.items()}
        kinds = [self.kinds[i] for i in rows.tolist()] if self.kinds else self.kinds
        return Batch(self.family, self.dtype, dims, kinds, self.positions[rows])

    def where(self, test: Callable[[Kind], bool]) -> npt.NDArray[np.bool_]:
        """Which kernels' kinds pass a test; each distinct kind is tested once."""
        if self.uniform:
            return np.full(len(self), test(self.kinds[0]))
        passed = {kind: test(kind) for kind in dict.fromkeys(self.kinds)}
        if len(set(passed.values())) <= 1:
            return np.full(len(self), next(iter(passed.values()), False))
        return np.fromiter((passed[kind] for kind in self.kinds), dtype=bool, count=len(self))

    def by_variant(self, apart: Callable[[str], bool]) -> list[tuple[str, IntArray]]:
        """Rows of each variant that stands apart, then ("") of all others; no group is empty."""
        everything = np.arange(len(self))
        found = sorted({kind.variant for kind in dict.fromkeys(self.kinds) if apart(kind.variant)})
        if not found:
            return [("", everything)]
        if self.uniform:
            return [(found[0], everything)]
        variants = np.array([kind.variant for kind in self.kinds])
        groups = [(name, everything[variants == name]) for name in found]
        groups.append(("", everything[~np.isin(variants, found)]))
        return [(name, rows) for name, rows in groups if len(rows)]

    def as_family(self, family: str) -> Batch:
        """The same sizes read as another family's (a gradient's as those of its forward)."""
        if family == self.family:
            return self
        return replace(self, family=family)

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
        cls, family: str, dtype: str, dims: Mapping[str, FloatArray], operators: Sequence[str] | str = ""
    ) -> Batch:
        """A batch straight from columns; sizes that are missing get their neutral value."""
        n = max((len(np.atleast_1d(column)) for column in dims.values()), default=0)
        given = {
            key: np.broadcast_to(np.asarray(column, dtype=np.float64), n) for key, column in dims.items()
        }
        return cls(
            family, dtype, complete(family, dtype, given, n), kinds(family, operators, n), np.arange(n)
        )


def kinds(family: str, operators: Sequence[str] | str, n: int) -> list[Kind]:
    """The kinds of ``n`` kernels, by the operator of all or of each."""
    if isinstance(operators, str):
        return [classify(family, operators)] * n
    return [classify(family, operator) for operator in operators]


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


def product_flops(kernel: Kernel, *, masked: bool = True) -> float:
    """FLOPs of a matrix product as models count them, zero for any other kernel; without ``masked`` attention
    counts the whole sequence, causal or not, as MFU does."""
    known = FAMILIES.get(kernel.family)
    if known is None or known.category not in PRODUCTS:
        return 0.0
    dims = {name: np.array([float(value)]) for name, value in kernel.dims if masked or name != "causal"}
    flops = float(known.flops(complete(kernel.family, kernel.dtype, dims, 1))[0])
    return flops * FLASH_BACKWARD if kernel.family == "attention_backward" else flops


def _sound(column: FloatArray) -> FloatArray:
    """The column, copied only where a value is below zero or not finite."""
    if len(column) and column.min() >= 0 and column.max() < np.inf:  # both fail where a value is not a number
        return column
    return np.maximum(np.nan_to_num(column, nan=1.0, posinf=1e18), 0.0)


def batches(kernels: Sequence[Kernel]) -> Iterator[Batch]:
    """Sort kernels into one batch per family and dtype."""
    for (family, dtype), positions in _kinds(kernels).items():
        every = len(positions) == len(kernels)
        members = kernels if every else [kernels[i] for i in positions]
        dims = complete(family, dtype, _columns(members), len(members))
        at = np.arange(len(members)) if every else np.array(positions, dtype=np.int64)
        yield Batch(family, dtype, dims, list(map(_KIND, members)), at)


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


def put_together(parts: Sequence[tuple[IntArray, Estimates]], n: int) -> Estimates:
    """Answers with the places that they belong to, as the answer of ``n`` kernels."""
    if len(parts) == 1 and len(parts[0][0]) == n and (n == 0 or parts[0][0][-1] == n - 1):
        return parts[0][1]
    time_us, spread = np.zeros(n), np.zeros(n)
    source = np.zeros(n, dtype=np.int64)
    notes: dict[int, str] = {}
    for at, answer in parts:
        time_us[at], source[at], spread[at] = answer.time_us, answer.source, answer.spread
        if answer.notes:
            where = at.tolist()
            notes.update(zip(map(where.__getitem__, answer.notes), answer.notes.values(), strict=True))
    return Estimates(time_us, source, spread, notes)


INTERVAL_SIGMAS = 1.645
"""A 90 % interval in standard deviations of ln(time)."""
WORTH_SAYING = 1.1
"""How much wider an interval must be for a note."""


def either_way(spread: float) -> str:
    """The 90 % interval of a spread: ±12 %."""
    return f"±{math.expm1(INTERVAL_SIGMAS * spread):.0%}".replace("%", " %")


def beyond_shapes(inside: float, outside: float) -> str:
    """Of a kernel larger or smaller than all that its model was fitted on: how much less sure it is.

    ``inside`` is the spread of measured shapes, ``outside`` that of the kernel. Empty where both are equal.
    """
    if outside < WORTH_SAYING * inside:
        return ""
    return f"outside measured shapes: {either_way(outside)} (usually {either_way(inside)})"


def joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))
