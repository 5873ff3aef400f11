"""Every figure of streaming kernels that was chosen or read off runs, with unit, basis and effect.

Start times, shares and rates by family stand, with their sources, in the tables of `stream_costs`.
T: medians over profiler traces (public traces); N: fp32 operators (eleven GPUs).
"""

from __future__ import annotations

from stepsight.basis import Basis

MEETING = 4.0
USUAL_SHARE = 0.87
UNMEASURED_SPREAD = 0.1
OUTSIDE_SPREAD = 0.1
IN_CACHE = 0.6
CACHE_SPEEDUP = 1.3
L2_REACHED = 0.44
CACHE_SPILL = 1.2
SPILLED_HITS = 0.12
FOUND_BACKWARD = 0.5
ROWS_IN_CACHE = 0.75
INLINE_ECC = 0.88
TURING_MEMORY = 0.94
SLOW_MEMORY = 4.0
LARGE_L2_MB = 24.0
AMD_LONG_SOFTMAX = 0.48
WARP_COLUMNS = 1024
WARP_HALF_RATE = 2.5
GDDR_NORMS = 1.15
INDEXED_RATE = 1.5
PAGEABLE_GBPS = 5.0
REDUCE_TURN_US = 0.2
REDUCE_ROWS = 16.0
REDUCE_TURNS = 32.0

BASES = {
    "MEETING": Basis(
        "exponent of a norm", "chosen: rounds the corner between the bounds of memory and of instructions",
        "kernels near both bounds",
    ),
    "USUAL_SHARE": Basis(
        "share of memory bandwidth",
        "element-wise kernels on V100, A100 and H100, on which `STREAMS` was read",
        "streaming kernels and lookups on GPUs whose own share was measured", runs=3,
    ),
    "UNMEASURED_SPREAD": Basis(
        "standard deviation of ln(time)",
        "added where a GPU's own element-wise bandwidth was not measured: shares range from 0.74 to 0.91 on"
        " those where it was",
        "intervals", runs=3,
    ),
    "OUTSIDE_SPREAD": Basis(
        "standard deviation of ln(time)",
        "added, at most, outside the fitted shapes: causal attention over 16 k by a fit up to 5 k is off by"
        " 7 %",
        "intervals of streaming kernels and attention", runs=1,
    ),
    "IN_CACHE": Basis(
        "share of L2", "chosen: traffic below it mostly hits, as the producer has just written it",
        "streaming kernels of 10 to 50 MB since A100",
    ),
    "CACHE_SPEEDUP": Basis(
        "times the bandwidth of large kernels", "A100 and H100 kernels of 10 to 30 MB reach 1.2 to 1.4 (T)",
        "streaming kernels of 10 to 50 MB since A100", runs=2,
    ),
    "L2_REACHED": Basis(
        "share of the L2 cache's bandwidth",
        "chosen: at least the speed-up of CACHE_SPEEDUP where memory is a third as fast as the cache (A100)",
        "streaming kernels of 10 to 50 MB since A100", runs=1,
    ),
    "CACHE_SPILL": Basis(
        "times the L2 cache",
        "operands of this size hardly hit: on one L4 (48 MiB) 50.3 MB take 38 to 63 µs, 62.9 MB 250 µs (N)",
        "streaming kernels in cache on boards with slow memory", runs=1,
    ),
    "SPILLED_HITS": Basis(
        "share of bytes",
        "hits that are left at CACHE_SPILL, fewer above and none at twice the cache: on one L4 62.9 and 67.1"
        " MB take 0.90 of their time at device memory's rate (N)",
        "streaming kernels of one to two times the cache on boards with slow memory", runs=1,
    ),
    "FOUND_BACKWARD": Basis(
        "share of bytes",
        "chosen: one of two streams; on one L4 42 MB take 105 µs, a forward of as many 34 µs (N)",
        "gradients' kernels in cache on boards with slow memory", runs=1,
    ),
    "ROWS_IN_CACHE": Basis(
        "share of the speed-up by hits", "layer norms of 33 and 42 MB on one L4: 57 and 63 µs (N)",
        "softmax and layer norm in cache on boards with slow memory", runs=1,
    ),
    "INLINE_ECC": Basis(
        "share of what boards with HBM reach of their bandwidth",
        "element-wise kernels above 100 MB: P4 0.75, T4 0.74, L4 0.78, against 0.87 (N)",
        "streaming kernels on boards of data centres with GDDR memory", runs=3,
    ),
    "TURING_MEMORY": Basis(
        "share of what boards with HBM reach of their bandwidth",
        "dropout's gradient on TITAN RTX 0.84 and RTX 2080 Ti 0.88, against 0.91 on V100, A100 and RTX 3090",
        "streaming kernels on Turing's boards without ECC", runs=2,
    ),
    "SLOW_MEMORY": Basis(
        "L2 over memory bandwidth",
        "Ada's boards lie above it: there hits in L2 shorten a kernel several times",
        "streaming kernels in cache", runs=1,
    ),
    "LARGE_L2_MB": Basis(
        "MB", "between V100 (6 MB), which shows no speed-up by hits, and A100 (40 MB), which does (T)",
        "on which GPUs hits in L2 count", runs=2,
    ),
    "AMD_LONG_SOFTMAX": Basis(
        "share of what NVIDIA's GPUs reach",
        "softmax over more columns than one warp holds, MI210 and MI250 (N)",
        "softmax on AMD", runs=2,
    ),
    "WARP_COLUMNS": Basis(
        "columns", "PyTorch's code: softmax up to here keeps a row in one warp's registers", "softmax"
    ),
    "WARP_HALF_RATE": Basis(
        "elements per multiprocessor and clock",
        "fp16 softmax of 1,024 columns on A100, 2.0 to 3.1 beside the bytes (megatron_ops_fp16, 61 shapes)",
        "softmax in half precision whose rows one warp holds", runs=1,
    ),
    "GDDR_NORMS": Basis(
        "times the share of other kernels",
        "layer norms, whose few bytes in flight cover GDDR's latency better: T4 0.79 and L4 0.83 of the"
        " bandwidth where element-wise kernels reach 0.74 and 0.78 (N)",
        "layer norms on boards with GDDR memory since Turing", runs=2,
    ),
    "REDUCE_TURN_US": Basis(
        "µs", "sums over 512 to 2,048 rows take 6 to 14 µs beside their bytes: V100's DLRM lists, H100 (T)",
        "short reductions, as gradients of biases", runs=2,
    ),
    "REDUCE_ROWS": Basis(
        "values", "PyTorch's code: four rows of threads at least, four values a thread at once", "reductions"
    ),
    "REDUCE_TURNS": Basis(
        "turns", "longer reductions are shared by more threads and blocks (PyTorch's code: at least 16 values"
        " a thread, at most 256)",
        "reductions",
    ),
    "PAGEABLE_GBPS": Basis(
        "GB/s",
        "chosen: the host copies pageable memory into pinned first; 4.3 in an A100's trace",
        "copies between host and GPU that a trace names pageable", runs=1,
    ),
    "INDEXED_RATE": Basis(
        "elements per multiprocessor and clock",
        "element-wise kernels with an index for every element: A100 1.2 to 1.7, H100 1.4 to 1.75 (T)",
        "broadcast and strided element-wise kernels", runs=2,
    ),
}  # fmt: skip
"""One entry for each figure above (a test keeps it so)."""
