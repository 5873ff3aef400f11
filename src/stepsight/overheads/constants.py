"""Constants of this area, from ``data/constants/overheads.toml``; the file has unit and basis of each.

The times themselves are measured tables (`defaults`), as are the frameworks' host profiles
(`defaults/host_profiles.toml`).
"""

from __future__ import annotations

from stepsight.constants import area

_FILE = area("overheads")
PROFILER_CPU_EVENT_US = _FILE.number("PROFILER_CPU_EVENT_US")
PROFILER_GPU_EVENT_US = _FILE.number("PROFILER_GPU_EVENT_US")
LAUNCH_SHARE = _FILE.number("LAUNCH_SHARE")
KEPT_SHARE = _FILE.number("KEPT_SHARE")
FENCE = _FILE.number("FENCE")
FEWEST_TO_TRIM = _FILE.whole("FEWEST_TO_TRIM")
ROUNDS = _FILE.whole("ROUNDS")
FEWEST_SHARED = _FILE.whole("FEWEST_SHARED")
LEAST_US = _FILE.number("LEAST_US")
REFERENCE_US = _FILE.number("REFERENCE_US")
HOST_GBPS = _FILE.number("HOST_GBPS")
DIVIDE_NS = _FILE.number("DIVIDE_NS")
UNKNOWN_VARIATION = _FILE.number("UNKNOWN_VARIATION")
