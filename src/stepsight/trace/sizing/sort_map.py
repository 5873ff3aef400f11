"""Kernels of cub's radix sort, sized by their names and launch grids.

A sort counts the digits of all keys (histogram), adds the counts up (exclusive sum), and moves keys and
values once for every digit of eight bits (onesweep). Before cub 1.13 each digit took an upsweep that counts,
a scan and a downsweep that moves. Up to one tile of keys is sorted by a single block. The inputs of the
operator around a sort seldom are its keys (FBGEMM's backward records the gradient alone). The grid of a pass
counts tiles, whose size follows from the types in the kernel's name, the block's threads and the chip.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.sorts import ONE_BLOCK_KEYS
from stepsight.program.job import Kernel, Sizing
from stepsight.trace.reading.events import Event
from stepsight.trace.sizing.tensors import Tensor

_PART = re.compile(r"RadixSort(Histogram|ExclusiveSum|ScanBins|Onesweep|SingleTile|Upsweep|Downsweep)Kernel")
_POLICY = re.compile(r"(?:DeviceRadixSortPolicy|policy_hub|policy_selector_from_types)<")
_COMPILED_FOR = re.compile(r"Policy(\d+)0\b")
_WIDTHS = {
    **dict.fromkeys(("bool", "char", "signed char", "unsigned char"), 1),
    **dict.fromkeys(("short", "unsigned short", "c10::Half", "__half", "c10::BFloat16", "__nv_bfloat16"), 2),
    **dict.fromkeys(("int", "unsigned int", "float"), 4),
}
"""Bytes of types as names spell them; all others have eight (``long``, ``double``, and what a cut name hides:
PyTorch sorts with 64-bit positions as values)."""
_EIGHT = 8
_OPAQUE = re.compile(r"OpaqueType<(\d+)>")
_SORTS = re.compile(r"^(arg)?sort$|^_?unique")
"""Operators whose first input is what is sorted."""
_COUNTS = frozenset({"Histogram", "Upsweep"})
_ADDS_UP = frozenset({"ExclusiveSum", "ScanBins"})
_HISTOGRAM_KEYS = 16
"""Keys a thread of the histogram, whose blocks are no more than the chip holds at once and loop."""


@dataclass(frozen=True, slots=True)
class _Sort:
    """What a kernel's name tells: its part in the sort, bytes of key and value, the chip it is tuned for."""

    part: str
    key: int
    value: int
    wide_offsets: bool
    tuned_for: int


def is_radix_sort(kernel: str) -> bool:
    """Whether a kernel is one of cub's radix sort."""
    return _named(kernel) is not None


def sort_kernel(
    event: Event,
    op: Event | None = None,
    tensors: Sequence[Tensor] = (),
    beside: Sequence[Event] = (),
    gpu: GpuSpec | None = None,
) -> Kernel | None:
    """A kernel of cub's radix sort; None for all others, and where neither grid nor inputs tell the keys.

    ``beside`` are the kernels of the same call: the histogram's grid fills the chip whatever it counts, so
    that its keys are those of the passes behind it.
    """
    sort = _named(event.name)
    if sort is None:
        return None
    if sort.part in _ADDS_UP:
        return _pass(event, "radix_scan", 1.0, 0, 0, Sizing.STATED)
    recorded = float(tensors[0].elements) if op is not None and tensors and _is_sort(op.name) else inf
    keys, sizing = _keys(sort, event, recorded, beside, gpu)
    if keys is None:
        return None
    if sort.part == "SingleTile":
        dtype = f"int{8 * max(sort.key, 1)}"
        return Kernel.of(
            "sort", dtype, operator="radix_sort", sizing=sizing, elements=min(keys, ONE_BLOCK_KEYS)
        )
    if sort.part in _COUNTS:
        return _pass(event, "radix_histogram", keys, sort.key, 0, sizing)
    return _pass(event, "radix_pass", keys, sort.key + sort.value, sort.key + sort.value, sizing)


def _pass(event: Event, name: str, keys: float, read: int, written: int, sizing: Sizing) -> Kernel:
    return Kernel.of(
        "sort_pass", "int64", operator=name, sizing=sizing, elements=keys, read_bytes=max(keys * read, 1.0),
        write_bytes=max(keys * written, 1.0),
    )  # fmt: skip


def _keys(
    sort: _Sort, event: Event, recorded: float, beside: Sequence[Event], gpu: GpuSpec | None
) -> tuple[float | None, Sizing]:
    """How many keys the kernel handles; no more than were recorded, where the keys themselves were."""
    blocks = float((*event.grid(), 0)[0])
    if sort.part == "Histogram":
        counted = max((_counted(e, gpu) for e in beside if "Onesweep" in e.name), default=0.0)
        sizing = Sizing.COUNTED
        if not counted and recorded == inf:
            counted, sizing = blocks * (*event.block(), 1)[0] * _HISTOGRAM_KEYS, Sizing.GRID
    else:
        counted, sizing = _counted(event, gpu), Sizing.COUNTED
    if not counted:
        return (None, sizing) if recorded == inf else (recorded, Sizing.STATED)
    return (counted, sizing) if counted < recorded else (recorded, Sizing.STATED)


def _counted(event: Event, gpu: GpuSpec | None) -> float:
    """Keys in all tiles of a pass."""
    sort = _named(event.name)
    blocks, threads = (*event.grid(), 0)[0], (*event.block(), 0)[0]
    return float(blocks * tile_keys(sort, threads, gpu)) if sort else 0.0


def tile_keys(sort: _Sort, threads: int, gpu: GpuSpec | None) -> int:
    """Keys that a block takes: threads, times what each keeps in registers (cub's tuning_radix_sort.cuh)."""
    if sort.part == "SingleTile":
        items = 19
    elif sort.part in ("Upsweep", "Downsweep"):
        items = 23 if threads >= 512 else 25
    elif threads >= 384 and sort.tuned_for >= 90 and gpu is not None and gpu.architecture in _RECENT:
        items = _recent_items(sort)
    elif threads >= 384:
        items = 17 if sort.wide_offsets and sort.key == 4 and sort.value else 21
    else:
        items = 46 if sort.key == sort.value == 4 else 23
    return threads * max(items * 4 // max(sort.key, sort.value, 4), 1)


_RECENT = frozenset({"hopper", "blackwell"})


def _recent_items(sort: _Sort) -> int:
    """Items of four bytes a thread since Hopper."""
    if sort.key != 4:
        return 24 if sort.value >= _EIGHT else 30
    if not sort.value:
        return 19 if sort.wide_offsets else 20
    if sort.value < _EIGHT:
        return 17 if sort.wide_offsets else 23
    return 29 if sort.wide_offsets else 30


@lru_cache(maxsize=8192)
def _named(kernel: str) -> _Sort | None:
    part = _PART.search(kernel)
    if part is None:
        return None
    policy = _POLICY.search(kernel)
    types = _arguments(kernel[policy.end() :]) if policy else []
    key, value, offset = [*types, *("long", "long", "int")[len(types) :]][:3]
    compiled = _COMPILED_FOR.search(kernel)
    return _Sort(
        part[1], _width(key), _width(value), offset not in ("int", "unsigned int"),
        int(compiled[1]) if compiled else 100,
    )  # fmt: skip


def _arguments(text: str) -> list[str]:
    """Template arguments up to the bracket that closes them; the last may be cut."""
    found, depth, begin = [], 0, 0
    for i, letter in enumerate(text):
        if letter == "<":
            depth += 1
        elif letter == ">" and depth:
            depth -= 1
        elif letter in ",>" and not depth:
            found.append(text[begin:i].strip())
            begin = i + 1
            if letter == ">":
                break
    return found


def _width(name: str) -> int:
    if "NullType" in name:
        return 0
    opaque = _OPAQUE.search(name)
    return int(opaque[1]) if opaque else _WIDTHS.get(name, _EIGHT)


@lru_cache(maxsize=8192)
def _is_sort(op: str) -> bool:
    return _SORTS.search(op.rsplit("::", 1)[-1]) is not None
