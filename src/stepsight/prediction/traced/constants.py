"""Constants of this area, from ``data/constants/traced.toml``; the file has unit and basis of each.

What turning a trace into a job uses stands in `trace.rules`; the exponents of kernels in `weights`.
"""

from __future__ import annotations

from stepsight.constants import area

_FILE = area("traced")
COLLECTIVE_WEIGHT = _FILE.number("COLLECTIVE_WEIGHT")
UNSIZED_SPREAD = _FILE.number("UNSIZED_SPREAD")
MOST_KERNEL_RATIO = _FILE.number("MOST_KERNEL_RATIO")
MOST_COLLECTIVE_RATIO = _FILE.number("MOST_COLLECTIVE_RATIO")
MOST_RESCALING = _FILE.number("MOST_RESCALING")
SAID_RESCALING = _FILE.number("SAID_RESCALING")
TOUCH_US = _FILE.number("TOUCH_US")
