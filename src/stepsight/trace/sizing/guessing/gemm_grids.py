"""GEMM sizes where a trace recorded no shapes.

A GEMM's name carries its tile and its grid counts the tiles, so every side is known up to a
tile. The element-wise kernels beside it stream the same matrices and count them to a few
hundred elements, which tells the side exactly. The reduced size shows in none of a GEMM's
own figures, but in the grids of its gradients.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from stepsight.program.job import Kernel, Sizing
from stepsight.trace.linking.launches import NO_OP, Launch
from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.guessing.persistent_gemms import is_compiled, persistent_sizes
from stepsight.trace.sizing.launch_grid import (
    GEMM,
    TILE,
    elements_by_grid,
    elements_per_block,
    grid_blocks,
    is_elementwise,
)

if TYPE_CHECKING:
    from stepsight.trace.sizing.facts import Facts

_UNKNOWN_K = int(RULES.value("unknown_k"))
_NEIGHBOURS = 3
"""Kernels on either side of a GEMM that may stream its matrices (a bias, an activation, a sum)."""
_FEWEST_BLOCKS = int(RULES.value("fewest_blocks"))


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a GEMM's result: at most ``most``, more than ``most`` less a tile."""

    most: int
    tile: int

    def holds(self, size: float) -> bool:
        return self.most - self.tile < size <= self.most


@dataclass(frozen=True, slots=True)
class GemmGrid:
    """What a GEMM's grid covers. ``depth`` is its batch, or in how many parts the sum was split."""

    across: Side
    down: Side
    depth: int


def grid_of(event: Event) -> GemmGrid | None:
    """The tiles of a GEMM kernel, if it is one whose name and grid show them."""
    tile = _tile(event.name)
    if tile is None or not event.grid():
        return None
    x, y, z = grid_blocks(event)
    tile_m, tile_n = tile
    return GemmGrid(Side(x * tile_m, tile_m), Side(y * tile_n, tile_n), z)


@lru_cache(maxsize=8192)
def _tile(kernel: str) -> tuple[int, int] | None:
    """The tile that a GEMM's name spells out."""
    tile = TILE.search(kernel)
    return (int(tile[1]), int(tile[2])) if tile and GEMM.search(kernel) else None


def gemm_by_grid(facts: Facts, launch: Launch, grid: GemmGrid, dtype: str) -> Kernel:
    """The GEMM behind a grid, with the sizes that its neighbours and gradients tell."""
    linked, known = facts.linked, facts.gemm_grids
    persistent = persistent_sizes(facts.compiled, launch)
    if persistent:
        m, n, k = persistent
        return Kernel.of("gemm", dtype, operator="mm", sizing=Sizing.NEIGHBOURS, batch=1, m=m, n=n, k=k)
    batch = grid.depth if _is_batched(linked, launch) else 1
    reduced = known.reduced_size(linked, launch, grid)
    across, down = known.tightest(linked, launch, grid.across), known.tightest(linked, launch, grid.down)
    # Without a gradient's grid nothing tells what the product sums over.
    sizing = Sizing.GRID if reduced else Sizing.UNKNOWN
    return Kernel.of(
        "gemm", dtype, operator="mm", sizing=sizing, batch=batch, m=down, n=across, k=reduced or _UNKNOWN_K
    )


@dataclass(slots=True)
class GemmGrids:
    """The grids of all GEMMs, by the sequence number that joins a forward with its gradients.

    The gradient of the input has the reduced size as its width, the gradient of the weight
    as one of its sides: whichever side is not the forward output's is the reduced size.
    """

    gradients: dict[int, list[GemmGrid]] = field(default_factory=lambda: defaultdict(list))
    forward: dict[int, GemmGrid] = field(default_factory=dict)
    exact: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Sizes that the neighbours of a sequence's GEMMs tell to the element."""

    def tightest(self, linked: LinkedTrace, launch: Launch, side: Side) -> int:
        """The side's exact size where a neighbour tells it, else the smallest bound on it: the
        same size shows in other grids with other tiles."""
        return self._tightest(_sequence(linked, launch.op), side)

    def _tightest(self, sequence: int, side: Side) -> int:
        exact = [size for size in self.exact.get(sequence, ()) if side.holds(size)]
        if exact:
            return min(exact)
        forward = self.forward.get(sequence)
        others = [*self.gradients.get(sequence, []), *([forward] if forward else [])]
        bounds = (s.most for g in others for s in (g.across, g.down))
        return min([side.most, *(b for b in bounds if side.most - 128 < b <= side.most)])

    def reduced_size(self, linked: LinkedTrace, launch: Launch, grid: GemmGrid) -> int | None:
        """What the product sums over, by the grids of its gradients; None where they do not tell."""
        sequence = _sequence(linked, launch.op)
        if sequence < 0:
            return None
        if not _is_backward(linked, launch.op):
            widths = [g.across for g in self.gradients.get(sequence, []) if _near(g.down, grid.down)]
            return min((self._tightest(sequence, w) for w in widths), default=None)
        forward = self.forward.get(sequence)
        if forward is None:
            return None
        # A gradient as tall as the batch sums over the output; the other one sums over the batch.
        return self._tightest(sequence, forward.across if _near(grid.down, forward.down) else forward.down)


def _near(a: Side, b: Side) -> bool:
    return abs(a.most - b.most) <= 128


def grids_by_sequence(linked: LinkedTrace) -> GemmGrids:
    """The grids of every product of a trace."""
    grids = GemmGrids()
    for launch in linked.launches:
        grid = grid_of(launch.gpu[0])
        sequence = _sequence(linked, launch.op) if grid else -1
        if grid is None or sequence < 0:
            continue
        if _is_backward(linked, launch.op):
            grids.gradients[sequence].append(grid)
        else:
            grids.forward[sequence] = grid
        grids.exact[sequence] |= _told_by_neighbours(linked, launch, grid)
    return grids


def _told_by_neighbours(linked: LinkedTrace, launch: Launch, grid: GemmGrid) -> set[int]:
    """Sides that make the result as large as what an element-wise kernel beside it streams."""
    batch = grid.depth if _is_batched(linked, launch) else 1
    found: set[int] = set()
    for other in (*linked.before(launch, _NEIGHBOURS), *linked.after(launch, _NEIGHBOURS)):
        event = other.gpu[0]
        if not is_elementwise(event):
            continue
        elements, block = elements_by_grid(event), elements_per_block(event)
        if elements < _FEWEST_BLOCKS * block:
            continue
        for side, rest in ((grid.across, grid.down.most), (grid.down, grid.across.most)):
            size = int(elements // (batch * rest))
            # The batch mostly fills its tiles; where it does not, the product does not come out even.
            if side.holds(size) and elements - batch * rest * size < block:
                found.add(size)
    return found


def _is_batched(linked: LinkedTrace, launch: Launch) -> bool:
    """Whether the grid's depth counts the batch; else it is the split of the sum."""
    return any("bmm" in e.name.lower() for e in linked.chain(launch.op))


def _sequence(linked: LinkedTrace, op: int) -> int:
    if op == NO_OP:
        return -1
    if is_compiled(linked, op):
        return -1  # one number for a whole compiled graph joins nothing
    numbers = [e.args.sequence for e in linked.chain(op) if e.args.sequence >= 0]
    return numbers[-1] if numbers and _is_backward(linked, op) else (numbers[0] if numbers else -1)


def _is_backward(linked: LinkedTrace, op: int) -> bool:
    return any("Backward" in e.name or e.name.startswith("autograd::") for e in linked.chain(op))
