"""Every figure of sharding that was chosen or read off runs: value, unit, what it rests on, what it moves.

Figures that follow from hardware or formats stand where they are used.
"""

from __future__ import annotations

from stepsight.basis import Basis

EVENNESS = 0.01
CLOSE_ENOUGH = 1e-3
WALKED = 96
LEAST_EXPOSED = 0.02
STARTS = 3
SHAKES = 40
PLANS_AT_LEAST = 1500
PLANS_PER_TABLE = 10
OVERFULL = 1e12
MOVES = 64
SWAPS = 96
SPREADS = 16
COLD_RANKS = 6
NODES = 50_000
EXCHANGE_WEIGHTS = (0.1, 1.0, 4.0)
GRAINS = (float("inf"), 1.0, 0.5, 0.25)
REPLICATE = (0.0, 2.0**18, 2.0**22)
STEEPNESS = 4
LEAST_WIDTH = 32
REPLICATED_BYTES = 64 * 2**20
ROWS_PER_RANK = 16
LEVEL = 0.015
TIE = 0.015
SAME_LOAD = 0.01
CUT_WIDTH = 8
MOST_CUT = 8
SIMULATED_PLANS = 120

BASES = {
    "EVENNESS": Basis(
        "share of the busiest ranks' load in a plan's score",
        "chosen: leads over plateaus, where many plans take the same step",
        "which of equally fast plans a search keeps",
    ),
    "CLOSE_ENOUGH": Basis(
        "gap to the lower bound, as a share",
        "chosen: below what the quick price and the simulation differ by",
        "when a search ends early",
    ),
    "WALKED": Basis("changes priced by the whole step in a round", "chosen for speed", "planning time"),
    "LEAST_EXPOSED": Basis(
        "share of a load that does not show in the step now",
        "chosen: it may show when others are gone",
        "order in which changes are tried",
    ),
    "STARTS": Basis("greedy drafts improved before the best is shaken", "chosen", "planning time"),
    "SHAKES": Basis("shakes without a better plan", "chosen", "planning time"),
    "PLANS_AT_LEAST": Basis(
        "plans priced",
        "six tasks on 4 to 64 GPUs: pricing two to nine times as many gained 0.15 to 0.44 %, once 2.5 %",
        "gap to the bound, planning time",
    ),
    "SIMULATED_PLANS": Basis(
        "plans simulated one by one, for stacks without a common program",
        "chosen: some seconds",
        "planning time",
    ),
    "PLANS_PER_TABLE": Basis(
        "plans priced for each table", "as PLANS_AT_LEAST", "gap to the bound, planning time"
    ),
    "OVERFULL": Basis(
        "µs", "above the step of any plan that fits: memory is a hard limit", "none: an order, not a price"
    ),
    "MOVES": Basis(
        "candidates a round", "chosen: enough to find a good one, few enough to be quick", "planning time"
    ),
    "SWAPS": Basis("candidates a round", "as MOVES", "planning time"),
    "SPREADS": Basis("tables a round", "as MOVES", "planning time"),
    "COLD_RANKS": Basis("least loaded ranks that take parts", "chosen", "planning time"),
    "NODES": Basis("placements tried by branch and bound", "chosen", "whether a tight packing is found"),
    "EXCHANGE_WEIGHTS": Basis(
        "weight of the exchange against lookups",
        "chosen: what is exposed differs by task, so all three are tried",
        "greedy starts",
    ),
    "GRAINS": Basis(
        "multiples of a rank's even share above which tables are cut",
        "chosen: coarse to fine, all are tried",
        "greedy starts",
    ),
    "REPLICATE": Basis(
        "bytes up to which tables are replicated",
        "chosen: none, small, medium; only where data_parallel is allowed",
        "greedy starts",
    ),
    "STEEPNESS": Basis("power of a rank's load", "chosen: the busiest load counts most", "greedy starts"),
    "LEAST_WIDTH": Basis(
        "columns", "a 128-byte line of fp32 a row; TorchRec's least width, too", "which cuts are allowed"
    ),
    "REPLICATED_BYTES": Basis(
        "bytes",
        "chosen: the whole gradient of such a table is all-reduced in every step",
        "which tables may be replicated",
    ),
    "ROWS_PER_RANK": Basis(
        "rows", "chosen: a cut with fewer rows per rank does not pay", "which cuts are allowed"
    ),
    "LEVEL": Basis(
        "share of the step",
        "chosen: half of what comparing two plans repeats to on a quiet machine (20 live tasks)",
        "what the report calls the same time",
    ),
    "TIE": Basis(
        "share of the step",
        "chosen as LEVEL: far below what predictions of two plans are off against each other",
        "which of equally fast plans wins",
    ),
    "SAME_LOAD": Basis(
        "share of a rank's lookups or memory",
        "chosen: rows do not divide evenly, so ranks differ by less",
        "which of equally fast plans wins",
    ),
    "CUT_WIDTH": Basis(
        "columns", "twice this is the narrowest table that is cut", "what joining cut tables is seen on"
    ),
    "MOST_CUT": Basis("tables", "two points of a line", "what joining cut tables is seen on"),
}
"""One entry for each figure above (a test keeps it so)."""
