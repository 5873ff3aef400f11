"""Every figure of host overheads that was chosen or read off runs, with unit, basis and effect.

The times themselves are measured tables (`defaults`), as are the frameworks' host profiles
(`defaults/host_profiles.toml`).
"""

from __future__ import annotations

from stepsight.basis import Basis

PROFILER_CPU_EVENT_US = 2.0
PROFILER_GPU_EVENT_US = 4.0
LAUNCH_SHARE = 0.45
KEPT_SHARE = 0.3
FENCE = 1.5
FEWEST_TO_TRIM = 4
ROUNDS = 4
FEWEST_SHARED = 10
LEAST_US = 0.1
REFERENCE_US = 13.3
UNKNOWN_VARIATION = 0.5
HOST_GBPS = 8.0
DIVIDE_NS = 4.0
OLD_DIVIDE_NS = 8.0

BASES = {
    "PROFILER_CPU_EVENT_US": Basis(
        "µs", "METHOD §2, V100-era hosts: what recording one host operator costs at most",
        "host times without the profiler", runs=1,
    ),
    "PROFILER_GPU_EVENT_US": Basis(
        "µs", "METHOD §2, V100-era hosts: what recording one launch costs at most",
        "host times without the profiler", runs=1,
    ),
    "LAUNCH_SHARE": Basis(
        "share of a profiled launch call that is the recording",
        "4 of about 9 µs on V100-era hosts; newer hosts are taken to record as much faster as they launch",
        "host times without the profiler", runs=1,
    ),
    "KEPT_SHARE": Basis(
        "share of a profiled call that always stays",
        "chosen: a short call is never taken to be the profiler's cost alone", "host times of short calls",
    ),
    "FENCE": Basis(
        "interquartile ranges of ln(µs) beyond the quartiles", "the usual definition of an outlier",
        "means of host times",
    ),
    "FEWEST_TO_TRIM": Basis(
        "samples", "quartiles of fewer say nothing", "means of rare operators' host times"
    ),
    "ROUNDS": Basis(
        "turns of finding paces and operators' times", "after this many they move by less than 1 %",
        "host times from other hosts",
    ),
    "FEWEST_SHARED": Basis(
        "operators that two hosts share", "chosen: enough for a median to be told from chance",
        "host times from other hosts",
    ),
    "LEAST_US": Basis(
        "µs", "below the clock's resolution; keeps the logarithm of a zero finite", "none: a safeguard"
    ),
    "REFERENCE_US": Basis(
        "µs, T1 to T4 of one add", "the H100-era host times for which the frameworks' profiles are stated",
        "host times of language models on other hosts", runs=1,
    ),
    "HOST_GBPS": Basis(
        "GB/s, read and written by one thread",
        "one core of a Sapphire Rapids: joining arrays 16 to 20, copying into new memory 5 to 13 GB/s",
        "steps that wait for their loader",
    ),
    "DIVIDE_NS": Basis(
        "ns", "numpy's int32 % int64 on one core of a Sapphire Rapids: 4.3 to 6.3 with its traffic; "
        "64-bit IDIV takes 14 to 18 cycles from Ice Lake and Zen 2 on", "steps that wait for their loader",
    ),
    "OLD_DIVIDE_NS": Basis(
        "ns", "64-bit IDIV up to Cascade Lake: 24 to 90 cycles each (Agner Fog, Instruction tables), few for "
        "small quotients; at 3 GHz. Chosen in sight of TorchRec's published steps",
        "steps that wait for their loader", runs=1,
    ),
    "UNKNOWN_VARIATION": Basis(
        "standard deviation over mean", "chosen: of an operator that no table holds", "intervals",
    ),
}  # fmt: skip
"""One entry for each figure above (a test keeps it so)."""
