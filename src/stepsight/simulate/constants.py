"""Every figure of the simulation that was chosen or read off runs, with unit, basis and effect.

The slowdowns of work side by side belong to a platform and stand in `collectives.constants`.
"""

from __future__ import annotations

from stepsight.basis import Basis

SETTLED_US = 0.05
SETTLED_SHARE = 2e-4
MOST_WALKS = 12
SHARED_LINK = 2.0
FILLS_US = 50.0

BASES = {
    "SETTLED_US": Basis(
        "µs that a launch still moves", "chosen: below any clock's resolution", "when the walk has settled"
    ),
    "SETTLED_SHARE": Basis(
        "of the step, its change in two walks in a row", "chosen: far below the error of a prediction",
        "when the walk of a long step has settled",
    ),
    "MOST_WALKS": Basis(
        "walks", "chosen: overlap can flip at an edge; the mean of the flips is taken then", "simulation time"
    ),
    "SHARED_LINK": Basis(
        "times longer", "two transfers on one link get half of it each", "collectives at the same time"
    ),
    "FILLS_US": Basis(
        "µs that a kernel takes alone",
        "kernels beside others in the traces that COMPUTE_BESIDE_COMPUTE was read off (TorchRec DLRM on"
        " 4×V100, production DLRM on A100): those above had 2 to 32 waves of blocks, so they fill the GPU",
        "compute beside compute", runs=2,
    ),
}  # fmt: skip
"""One entry for each figure above (a test keeps it so)."""
