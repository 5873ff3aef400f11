"""Every figure of traced steps' predictions that was chosen or read off runs, with unit and basis.

What turning a trace into a job uses stands in `trace.rules`.
"""

from __future__ import annotations

from stepsight.basis import Basis

WEIGHT = 0.5
UNSIZED_WEIGHT = 1.0
FADES_UNDER_US = 30.0
UNSIZED_SPREAD = 0.35
MOST_KERNEL_RATIO = 1e3
MOST_COLLECTIVE_RATIO = 10.0
INDIVIDUAL_SPREAD = 0.05
MOST_RESCALING = 1.25
SAID_RESCALING = 0.02
TOUCH_US = 0.5

BASES = {
    "WEIGHT": Basis(
        "share of ln(measured ÷ model)",
        "how much of what a model misses on one GPU it misses on another: chosen in sight of the pairs of"
        " `stepsight validate traces`",
        "traces on another GPU, what-ifs that change sizes",
    ),
    "UNSIZED_WEIGHT": Basis(
        "share of ln(measured ÷ model)", "of a kernel without sizes the measured time is all there is",
        "traces on another GPU without recorded shapes",
    ),
    "FADES_UNDER_US": Basis(
        "µs",
        "chosen: a time this short is mostly launch latency; the weight is halved there and fades below",
        "short kernels of traces on another GPU",
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
    "INDIVIDUAL_SPREAD": Basis(
        "standard deviation of ln(host time)",
        "a step's host time by the run's other steps or ranks: root mean square 0.048 over 19 training runs"
        " (0.01 to 0.11 a run)",
        "intervals of traces on the same machine", runs=19,
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
