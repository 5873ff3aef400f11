"""Constants of this area, from ``data/constants/kernels.toml``; the file has unit and basis of each.

Start times, shares and rates by family stand, with their sources, in the tables of `stream_costs`.
T: medians over profiler traces (public traces); N: fp32 operators (eleven GPUs).
"""

from __future__ import annotations

from stepsight.constants import area

_FILE = area("kernels")
MEETING = _FILE.number("MEETING")
USUAL_SHARE = _FILE.number("USUAL_SHARE")
UNMEASURED_SPREAD = _FILE.number("UNMEASURED_SPREAD")
OUTSIDE_SPREAD = _FILE.number("OUTSIDE_SPREAD")
IN_CACHE = _FILE.number("IN_CACHE")
CACHE_SPEEDUP = _FILE.number("CACHE_SPEEDUP")
L2_REACHED = _FILE.number("L2_REACHED")
CACHE_SPILL = _FILE.number("CACHE_SPILL")
SPILLED_HITS = _FILE.number("SPILLED_HITS")
FOUND_BACKWARD = _FILE.number("FOUND_BACKWARD")
ROWS_IN_CACHE = _FILE.number("ROWS_IN_CACHE")
INLINE_ECC = _FILE.number("INLINE_ECC")
TURING_MEMORY = _FILE.number("TURING_MEMORY")
SLOW_MEMORY = _FILE.number("SLOW_MEMORY")
LARGE_L2_MB = _FILE.number("LARGE_L2_MB")
AMD_LONG_SOFTMAX = _FILE.number("AMD_LONG_SOFTMAX")
WARP_COLUMNS = _FILE.whole("WARP_COLUMNS")
WARP_HALF_RATE = _FILE.number("WARP_HALF_RATE")
GDDR_NORMS = _FILE.number("GDDR_NORMS")
REDUCE_TURN_US = _FILE.number("REDUCE_TURN_US")
REDUCE_ROWS = _FILE.number("REDUCE_ROWS")
REDUCE_TURNS = _FILE.number("REDUCE_TURNS")
PAGEABLE_GBPS = _FILE.number("PAGEABLE_GBPS")
INDEXED_RATE = _FILE.number("INDEXED_RATE")
