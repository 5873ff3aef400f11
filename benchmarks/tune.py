"""How fast the search is: candidates, seconds, memory; processes and Ray against one worker.

python benchmarks/tune.py [--json] [--workers 2] [--ray]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from stepsight.tune.api import described, sweep, tune
from stepsight.tune.space import space
from stepsight.tune.trial import Trial
from stepsight.tune.workers import Here, RayCluster, Workers

EXAMPLES = Path(__file__).parent.parent / "examples"
MODEL = EXAMPLES / "llama3_8b_fsdp.toml"
BARS = {"8B on 128 GPUs": 60.0, "8B on 1,024 GPUs": 180.0, "DLRM, 5 batches × 4 platforms": 5.0}
LEAST_CANDIDATES, MOST_GB, RAY_SPEEDUP = 500, 2.0, 1.7
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


def ray_against_one() -> dict[str, Any]:
    """A cluster of two nodes with one CPU each, started here; of two runs each the second counts."""
    from ray.cluster_utils import Cluster

    platform = "16x8xH100-SXM-400G"
    found = space(described(MODEL)[0], gpus=[128], per_node=8, global_batch=256)
    trials = [Trial(settings, platform, intervals=False) for settings in found.candidates[::4]]

    def taken(workers: Workers) -> float:
        for _ in range(2):
            begin = time.perf_counter()
            list(workers.run(found.document, trials, "benchmark"))
        return time.perf_counter() - begin

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        nodes = RayCluster(cluster.address)
        two = taken(nodes)
        nodes.close()
    finally:
        cluster.shutdown()
    one = taken(Here())
    return {"bar": "Ray, two nodes against one process", "candidates": len(trials), "seconds": two,
            "one_s": one, "speedup": one / two, "met": one / two >= RAY_SPEEDUP}  # fmt: skip


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
    if arguments.ray:
        rows.append(ray_against_one())
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
