"""Every figure of calibration that was chosen or read off runs: value, unit, what it rests on, what it moves.

Figures that follow from hardware or formats stand where they are used.
"""

from __future__ import annotations

import numpy as np

from stepsight.basis import Basis

NOISY = 0.05
STALL_US = 2000.0
PROFILED_STEPS = 4
SHORTEST_S = 20.0
PRIOR = np.array([0.15, 0.25, 0.25, 0.25, 0.3, 0.3, 0.3, 0.3, 0.6, 0.5])
NOISE_OF_STEPS = 0.03
TURNS_OF_NEWTON = 6
NEWTON_STEP = 0.05
STEP_QUANTILE = 0.25
PROFILED = (2, 3)
ALONE_ROUNDS = 20
FIRST_LOOKED_UP = 1000
TOGETHER = 6

BASES = {
    "NOISY": Basis(
        "disagreement of repeats, as a share", "chosen", "whether a calibration calls itself noisy"
    ),
    "STALL_US": Basis("µs", "chosen: an allocation, a page fault or a busy core", "host overheads"),
    "PROFILED_STEPS": Basis("steps", "chosen", "host overheads"),
    "SHORTEST_S": Basis("s", "chosen", "which budgets are refused"),
    "PRIOR": Basis(
        "standard deviation of ln(factor) before any rehearsal",
        "chosen: a collective's host times are only a guess, so theirs is widest",
        "in-step factors",
    ),
    "NOISE_OF_STEPS": Basis(
        "standard deviation of ln(step)",
        "shared machines: interleaved blocks differ by 3 to 5 %",
        "in-step factors",
    ),
    "TURNS_OF_NEWTON": Basis("iterations", "chosen", "fitting time"),
    "NEWTON_STEP": Basis("difference of ln(factor)", "chosen: small against the prior", "in-step factors"),
    "STEP_QUANTILE": Basis(
        "quantile",
        "disturbances only make a step longer; the lower quartile repeated better than the median",
        "what a measured step is",
    ),
    "PROFILED": Basis("DLRMs, transformers", "chosen", "host overheads"),
    "ALONE_ROUNDS": Basis("rounds", "chosen", "slowdown of lookups beside each other"),
    "FIRST_LOOKED_UP": Basis(
        "seed of a drawn model", "chosen: beyond those that are rehearsed", "none: which lookups are timed"
    ),
    "TOGETHER": Basis(
        "workloads interleaved", "chosen: a slow minute falls on all alike", "how rehearsals repeat"
    ),
}
"""One entry for each figure above (a test keeps it so)."""
