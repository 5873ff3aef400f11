"""How fast the search is: candidates, seconds, memory; two processes and two Ray workers against one.

python benchmarks/tune.py [--json] [--workers 2] [--ray]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from stepsight.tuning.api import described, sweep, tune
from stepsight.tuning.search import MAYBE
from stepsight.tuning.space import space
from stepsight.tuning.trial import Trial
from stepsight.tuning.workers import Processes, RayCluster, Workers

EXAMPLES = Path(__file__).parent.parent / "examples"
MODEL = EXAMPLES / "llama3_8b_fsdp.toml"
BARS = {"8B on 128 GPUs": 60.0, "8B on 1,024 GPUs": 180.0, "DLRM, 5 batches × 4 platforms": 5.0}
LEAST_CANDIDATES, MOST_GB, SPEEDUP = 500, 2.0, 1.7
MANY_MODELS = (MODEL, "llama3-70b", "gpt3-175b")
PLATFORMS = "4xV100-SXM2,4xA100-SXM4-40G,8xA100-SXM4-80G,8xH100-SXM"


def searched(name: str, platform: str, batch: int, workers: int) -> dict[str, Any]:
    begin = time.perf_counter()
    answer = tune(MODEL, platform, global_batch=batch, workers=workers)
    seconds = time.perf_counter() - begin
    enough = len(answer.rows) >= LEAST_CANDIDATES
    return {
        "bar": name, "candidates": len(answer.rows), "counts": dict(answer.counts), "seconds": seconds,
        "limit_s": BARS[name], "met": seconds < BARS[name] and enough,
    }  # fmt: skip


def swept() -> dict[str, Any]:
    name = "DLRM, 5 batches × 4 platforms"
    over = ["batch=1024,2048,4096,8192,16384", f"platform={PLATFORMS}"]
    begin = time.perf_counter()
    rows = sweep(EXAMPLES / "dlrm.toml", over=over)
    seconds = time.perf_counter() - begin
    return {"bar": name, "candidates": len(rows), "seconds": seconds, "limit_s": BARS[name],
            "met": seconds < BARS[name]}  # fmt: skip


def two_against_one(name: str, opened: Callable[[int], AbstractContextManager[Workers]]) -> dict[str, Any]:
    """Every legal configuration of several models, priced by one worker and by two, from the opening of the
    workers to the last row; the rows must be the same."""
    jobs = []
    for model in MANY_MODELS:
        found = space(described(model)[0], gpus=[1024], per_node=8, global_batch=2048)
        trials = [Trial(s, "128x8xH100-SXM-400G", least_fit=MAYBE, intervals=False) for s in found.candidates]
        jobs.append((found.document, trials))
    seconds, busiest, answers = [], [], []
    for count in (1, 2):
        with opened(count) as workers:
            begin = time.perf_counter()
            rows = [dict(workers.run(document, trials, "benchmark")) for document, trials in jobs]
            seconds.append(time.perf_counter() - begin)
            busiest.append(max(worker_cpu_s()))
        answers.append([[one[i] for i in range(len(one))] for one in rows])
    one_s, two_s = seconds
    return {"bar": name, "candidates": sum(len(trials) for _, trials in jobs), "one_s": one_s, "two_s": two_s,
            "speedup": one_s / two_s, "cpu_of_one_s": busiest[0], "cpu_of_the_busier_of_two_s": busiest[1],
            "cpu_speedup": busiest[0] / busiest[1], "same_rows": answers[0] == answers[1],
            "met": one_s / two_s >= SPEEDUP and answers[0] == answers[1]}  # fmt: skip


def worker_cpu_s() -> list[float]:
    """CPU time of this process's children and of Ray's actors: what is left of a speedup where other jobs
    share the cores."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
            actor = (folder / "cmdline").read_bytes().startswith(b"ray::Evaluator")
            if actor or int(after_name[1]) == os.getpid():
                found.append((int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK"))
    return found


@contextmanager
def processes(count: int) -> Iterator[Workers]:
    workers = Processes(count)
    try:
        yield workers
    finally:
        workers.close()


@contextmanager
def ray_nodes(count: int) -> Iterator[Workers]:
    """A cluster of this many nodes with one CPU each, started here."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(count - 1):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        nodes = RayCluster(cluster.address)
        yield nodes
        nodes.close()
    finally:
        cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ray", action="store_true", help="Also Ray, which takes a minute to start.")
    arguments = parser.parse_args()
    rows = [
        searched("8B on 128 GPUs", "16x8xH100-SXM-400G", 256, arguments.workers),
        searched("8B on 1,024 GPUs", "128x8xH100-SXM-400G", 2048, arguments.workers),
        swept(),
    ]
    rows.append(two_against_one("two processes against one", processes))
    if arguments.ray:
        rows.append(two_against_one("Ray, two workers against one", ray_nodes))
    used = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    peak_gb = sum(used) / 1e6
    rows.append({"bar": "peak memory, this process and the largest worker", "peak_gb": peak_gb,
                 "met": peak_gb < MOST_GB})  # fmt: skip
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            listed = ", ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            print(listed)
    sys.exit(0 if all(row["met"] for row in rows) else 1)


if __name__ == "__main__":
    main()
