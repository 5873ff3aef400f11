"""Concatenations where a trace recorded no shapes.

Their grid counts the inputs but caps the blocks, so a large one hides its size. The kernels
beside it tell: those that made its inputs, or those that read its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from stepsight.program.job import Kernel, Sizing
from stepsight.trace.linking.launches import Launch
from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event
from stepsight.trace.sizing.guessing.gemm_grids import gemm_by_grid, grid_of
from stepsight.trace.sizing.launch_grid import elements_by_grid, is_elementwise

if TYPE_CHECKING:
    from stepsight.trace.sizing.facts import Facts

_READERS = 2
"""Kernels behind a concatenation that are asked for what they read."""
_MOST_PIECES = 64
_CAPPED_BLOCKS = 128
"""PyTorch caps the blocks at a multiple of the multiprocessors, two at least; V100 has 80 of them."""


def concat_by_grid(facts: Facts, launch: Launch, event: Event, dtype: str, width: int) -> Kernel:
    """A concatenation as large as its pieces, its readers or at least its grid say; of one that none of
    them sizes a collective may tell more (`collective_sizes`)."""
    linked = facts.linked
    blocks, inputs = (*event.grid(), 1, 1)[:2]
    told = max(_pieces(linked, launch, inputs), _read(facts, launch))
    size = max(told, elements_by_grid(event)) * width
    sizing = Sizing.UNKNOWN if told == 0 and blocks >= _CAPPED_BLOCKS else Sizing.NEIGHBOURS
    return Kernel.of(
        "concat", dtype, operator="aten::cat", sizing=sizing, read_bytes=size, write_bytes=size,
        inputs=float(max(inputs, 2)),
    )  # fmt: skip


def _pieces(linked: LinkedTrace, launch: Launch, inputs: int) -> float:
    """Elements of the inputs, where as many like kernels just before it wrote them one by one."""
    before = [x.gpu[0] for x in linked.before(launch, inputs)]
    alike = _alike(before)
    return sum(map(elements_by_grid, before)) if alike == inputs > 1 else 0.0


def _read(facts: Facts, launch: Launch) -> float:
    """Elements that the next kernels on the stream read: all pieces, if like kernels take one each."""
    linked = facts.linked
    events = [x.gpu[0] for x in linked.after(launch, _MOST_PIECES)]
    pieces = events[: _alike(events)]
    sizes = [sum(map(elements_by_grid, pieces))]
    for other in linked.after(launch, _READERS):
        grid = grid_of(other.gpu[0])
        if grid:
            made = gemm_by_grid(facts, other, grid, "fp32")
            sizes.append(made.dim("batch") * made.dim("m") * made.dim("k"))
        elif is_elementwise(other.gpu[0]):
            sizes.append(elements_by_grid(other.gpu[0]))
    return max(sizes)


def _alike(events: Sequence[Event]) -> int:
    """How many of the first events are one element-wise kernel on one grid."""
    if not events or not is_elementwise(events[0]):
        return 0
    first = events[0]
    return sum(1 for _ in takewhile(lambda e: e.name == first.name and e.grid() == first.grid(), events))
