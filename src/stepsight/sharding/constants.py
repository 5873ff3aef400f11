"""Constants of this area, from ``data/constants/sharding.toml``; the file has unit and basis of each.

Figures that follow from hardware or formats stand where they are used.
"""

from __future__ import annotations

from stepsight.constants import area

_FILE = area("sharding")
EVENNESS = _FILE.number("EVENNESS")
CLOSE_ENOUGH = _FILE.number("CLOSE_ENOUGH")
WALKED = _FILE.whole("WALKED")
LEAST_EXPOSED = _FILE.number("LEAST_EXPOSED")
STARTS = _FILE.whole("STARTS")
SHAKES = _FILE.whole("SHAKES")
PLANS_AT_LEAST = _FILE.whole("PLANS_AT_LEAST")
PLANS_PER_TABLE = _FILE.whole("PLANS_PER_TABLE")
OVERFULL = _FILE.number("OVERFULL")
MOVES = _FILE.whole("MOVES")
SWAPS = _FILE.whole("SWAPS")
SPREADS = _FILE.whole("SPREADS")
COLD_RANKS = _FILE.whole("COLD_RANKS")
NODES = _FILE.whole("NODES")
EXCHANGE_WEIGHTS = _FILE.numbers("EXCHANGE_WEIGHTS")
GRAINS = _FILE.numbers("GRAINS")
REPLICATE = _FILE.numbers("REPLICATE")
STEEPNESS = _FILE.whole("STEEPNESS")
LEAST_WIDTH = _FILE.whole("LEAST_WIDTH")
REPLICATED_BYTES = _FILE.whole("REPLICATED_BYTES")
ROWS_PER_RANK = _FILE.whole("ROWS_PER_RANK")
LEVEL = _FILE.number("LEVEL")
TIE = _FILE.number("TIE")
SAME_LOAD = _FILE.number("SAME_LOAD")
CUT_WIDTH = _FILE.whole("CUT_WIDTH")
MOST_CUT = _FILE.whole("MOST_CUT")
SIMULATED_PLANS = _FILE.whole("SIMULATED_PLANS")
