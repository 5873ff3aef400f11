"""How fast the engine walks: the bars of the design, as medians of interleaved repeats.

python benchmarks/engine.py [--json]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from stepsight.program.job import COMPUTE, Collective, Job, Kernel, Op, RankProgram, Wait
from stepsight.simulate.engine import Priced, walk
from stepsight.simulate.lowering import Lane, lanes

REPEATS = 7


def program(ops: int, every: int) -> RankProgram:
    """Operators with one kernel each; every ``every``-th one is a collective that is joined later."""
    listed: list[Op] = []
    kernel = Kernel.of("other", read_bytes=1.0, write_bytes=1.0, flops=1.0)
    for i in range(ops):
        if i % every == every - 1:
            listed.append(Op("c10d::allreduce_", collective=Collective("all_reduce", 1e6)))
        elif i % every == every // 2 and i > every:
            listed.append(Op("c10d::wait", waits=(Wait(COMPUTE, i - i % every - 1),)))
        else:
            listed.append(Op("aten::add", (kernel,)))
    return RankProgram(tuple(listed))


def job(ranks: int, ops: int, *, own_times: bool) -> tuple[Job, tuple[Lane, ...], list[Priced]]:
    built = Job.replicated(program(ops, 100), ranks)
    found = lanes(built, synchronous=False)
    rng = np.random.default_rng(0)
    width = ranks if own_times else 1
    priced = [
        Priced(rng.uniform(1, 3, (x.tape.marks, 1, 1)), rng.uniform(5, 50, (x.tape.launches, 1, width)))
        for x in found
    ]
    return built, found, priced


def bars() -> list[tuple[str, float, Callable[[], object]]]:
    """Name, limit in seconds, what to time."""
    small, small_lanes, small_times = job(8, 5_000, own_times=True)
    large, large_lanes, large_times = job(1024, 20_000, own_times=True)
    help_command = [sys.executable, "-m", "stepsight", "--help"]
    small_walk = partial(walk, small_lanes, small_times, small.groups)
    return [
        ("8 ranks × 5,000 ops", 0.050, small_walk),
        ("8 ranks × 5,000 ops, full timeline", 0.150, partial(small_walk, keep=True)),
        ("1,024 ranks × 20,000 ops, own times", 2.0, partial(walk, large_lanes, large_times, large.groups)),
        (
            "stepsight --help",
            1.0,
            partial(subprocess.run, help_command, check=True, stdout=subprocess.DEVNULL),
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    listed = bars()
    samples: dict[str, list[float]] = {name: [] for name, _, _ in listed}
    for _ in range(REPEATS):
        for name, _, call in listed:
            begin = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - begin)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    medians = {name: statistics.median(taken) for name, taken in samples.items()}
    rows = [
        {"bar": name, "median_ms": 1e3 * medians[name], "limit_ms": 1e3 * limit, "met": medians[name] < limit}
        for name, limit, _ in listed
    ]
    rows.append({"bar": "peak memory", "peak_gb": peak_gb, "limit_gb": 2.0, "met": peak_gb < 2.0})
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            word = "met" if row["met"] else "MISSED"
            unit = "ms" if "median_ms" in row else "GB"
            value, limit = (row[k] for k in ("median_ms", "limit_ms")) if unit == "ms" else (peak_gb, 2.0)
            print(f"{row['bar']:<40} {value:9.2f} of {limit:g} {unit:<4} {word}")
    sys.exit(0 if all(row["met"] for row in rows) else 1)


if __name__ == "__main__":
    main()
