"""Products of a compiled region: which of the tensors that the region lists they multiply.

The kernel's grid tells the sides of the result up to a tile. A listed tensor with one side of the result
has the reduced size as its other side. Several may fit: of those, the one whose rate on this GPU is most
plausible for the time the kernel took. Where none is, the product stays unknown.
"""

from __future__ import annotations

from math import log, prod
from typing import TYPE_CHECKING

from stepsight.program.job import Kernel, Sizing
from stepsight.trace.reading.events import Event
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.calls import Call
from stepsight.trace.sizing.guessing.gemm_grids import GemmGrid, Side
from stepsight.trace.sizing.tensors import Tensor

if TYPE_CHECKING:
    from stepsight.trace.sizing.facts import Facts


def product_of_region(facts: Facts, call: Call, event: Event, grid: GemmGrid, dtype: str) -> Kernel | None:
    """The product behind a kernel of a region, or None where nothing listed fits it."""
    listed = [t for t in call.tensors if len(t.shape) >= 2]
    batch = _batch(grid, listed)
    if facts.gpu is None or batch is None:
        return None
    matrices = {m for t in listed for m in _matrices(t, batch)}
    across, down = _reduced(matrices, grid.across), _reduced(matrices, grid.down)
    both = [(m, n, k) for k in across.keys() & down.keys() for n in across[k] for m in down[k]]
    one = [(grid.down.most, n, k) for k, sides in across.items() for n in sides]
    one += [(m, grid.across.most, k) for k, sides in down.items() for m in sides]
    peak = facts.gpu.peak_flops(dtype)
    for found, sizing in ((both, Sizing.NEIGHBOURS), (one, Sizing.GRID)):
        rated = [(abs(log(rate / RULES.value("usual_gemm_rate"))), sizes) for sizes in found
                 if (rate := _rate(sizes, batch, event.dur, peak)) <= 1.0]  # fmt: skip
        if rated and min(rated)[0] < RULES.value("gemm_rate_slack"):
            m, n, k = min(rated)[1]
            return Kernel.of("gemm", dtype, operator="mm", sizing=sizing, batch=batch, m=m, n=n, k=k)
    return None


def _batch(grid: GemmGrid, listed: list[Tensor]) -> int | None:
    """The grid's depth where a listed tensor has as many matrices; a shallow one else splits the sum."""
    if grid.depth == 1 or any(len(t.shape) == 3 and t.shape[0] == grid.depth for t in listed):
        return grid.depth
    return 1 if grid.depth <= RULES.value("deepest_split") else None


def _matrices(tensor: Tensor, batch: int) -> list[tuple[int, int]]:
    shape = tensor.shape
    found = [(prod(shape[:-1]), shape[-1])]
    if len(shape) == 3 and shape[0] == batch > 1:
        found = [(shape[1], shape[2])]
    return [*found, *((b, a) for a, b in found)]


def _reduced(matrices: set[tuple[int, int]], side: Side) -> dict[int, set[int]]:
    """Sizes that may be reduced, each with the side of the result it comes with."""
    found: dict[int, set[int]] = {}
    for a, b in matrices:
        if side.holds(a) and b > 1:
            found.setdefault(b, set()).add(a)
    return found


def _rate(sizes: tuple[int, int, int], batch: int, dur_us: float, peak: float) -> float:
    """Share of the GPU's peak that the product would reach in the time it took."""
    m, n, k = sizes
    return 2.0 * batch * m * n * k / max(dur_us, 0.1) / 1e-6 / peak
