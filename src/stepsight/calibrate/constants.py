"""Constants of this area, from ``data/constants/calibrate.toml``; the file has unit and basis of each.

Figures that follow from hardware or formats stand where they are used.
"""

from __future__ import annotations

import numpy as np

from stepsight.constants import area

_FILE = area("calibrate")
NOISY = _FILE.number("NOISY")
STALL_US = _FILE.number("STALL_US")
PROFILED_STEPS = _FILE.whole("PROFILED_STEPS")
SHORTEST_S = _FILE.number("SHORTEST_S")
PRIOR = np.array(_FILE.numbers("PRIOR"))
NOISE_OF_STEPS = _FILE.number("NOISE_OF_STEPS")
TURNS_OF_NEWTON = _FILE.whole("TURNS_OF_NEWTON")
NEWTON_STEP = _FILE.number("NEWTON_STEP")
STEP_QUANTILE = _FILE.number("STEP_QUANTILE")
PROFILED = tuple(map(int, _FILE.numbers("PROFILED")))
ALONE_ROUNDS = _FILE.whole("ALONE_ROUNDS")
FIRST_LOOKED_UP = _FILE.whole("FIRST_LOOKED_UP")
TOGETHER = _FILE.whole("TOGETHER")
