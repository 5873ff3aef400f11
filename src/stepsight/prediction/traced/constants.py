"""Every figure of traced steps' predictions that was chosen or read off runs, with unit and basis.

What turning a trace into a job uses stands in `trace.rules`; the exponents of kernels in `weights`.
"""

from __future__ import annotations

from stepsight.basis import Basis

COLLECTIVE_WEIGHT = 0.5
UNSIZED_SPREAD = 0.35
MOST_KERNEL_RATIO = 1e3
MOST_COLLECTIVE_RATIO = 10.0
MOST_RESCALING = 1.25
SAID_RESCALING = 0.02
TOUCH_US = 0.5

BASES = {
    "COLLECTIVE_WEIGHT": Basis(
        "share of ln(measured ÷ model)",
        "chosen: half of what a model misses of a collective is the software's, half the links'",
        "collectives of traces on other machines",
    ),
    "UNSIZED_SPREAD": Basis(
        "standard deviation of ln(time)", "chosen: what remains in doubt of a kernel without sizes elsewhere",
        "intervals of traces on another GPU",
    ),
    "MOST_KERNEL_RATIO": Basis(
        "measured ÷ model, both ways", "chosen: beyond it the sizes are wrong", "none: a safeguard"
    ),
    "MOST_COLLECTIVE_RATIO": Basis(
        "measured ÷ model, both ways", "chosen: beyond it the call waited or its size is wrong",
        "collectives of traces on other machines",
    ),
    "MOST_RESCALING": Basis(
        "measured step ÷ walk, both ways",
        "chosen: a walk further off is of another step, or misses something",
        "whether a traced step is scaled to its measured time",
    ),
    "SAID_RESCALING": Basis("share of the step", "chosen", "none: which scaling is said in a note"),
    "TOUCH_US": Basis(
        "µs", "chosen: two things this close follow each other without a pause", "critical path"
    ),
}  # fmt: skip
"""One entry for each figure above (a test keeps it so)."""
