"""How the cost of a prediction grows with the ranks: time, memory and the growth exponent.

python benchmarks/scale.py [--json] [--ranks 8,64,512]

Every prediction runs in a process of its own, so that its peak memory is its own. Beside the time on the wall
stands the process's CPU time, start-up included. The bars judge the CPU time, which is the time on the wall
where nothing else runs. The exponent is the slope of log(CPU time) over log(ranks): 1 is proportional to the
ranks, 0 does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RANKS = (8, 64, 512, 4096, 16384)
EXAMPLES = Path(__file__).parent.parent / "examples"
BARS = {
    ("megatron", 4096): (5.0, 0.5),
    ("megatron", 16384): (10.0, 1.0),
    ("dlrm, a table a rank", 512): (5.0, None),
    ("dlrm, a table a rank", 1024): (5.0, None),
    ("dlrm, all tables different", 1024): (5.0, None),
    ("gpt2 ddp", 4096): (3.0, None),
}
"""Seconds and GB of the design, by model and ranks."""


def settings(model: str, ranks: int) -> tuple[str, list[str]]:
    """The example and what is set in it."""
    if model == "gpt2 ddp":
        return "gpt2.toml", [f"parallel.data={ranks}"]
    if model.startswith("dlrm"):
        return "dlrm.toml", [f"parallel.ranks={ranks}", f"batch={max(64 * ranks, 4096)}"]
    tensor, pipeline = min(8, ranks), max(1, min(8, ranks // 8))
    layout = [f"parallel.data={ranks // tensor // pipeline}", f"parallel.tensor={tensor}"]
    model_size = ["layers=64", "hidden=8192", "heads=64", "batch_per_rank=64", "parallel.micro_batch=1"]
    return "megatron.toml", [*model_size, *layout, f"parallel.pipeline={pipeline}"]


def tables(model: str, ranks: int) -> list[dict[str, Any]]:
    base = {"rows": 1_000_000, "dim": 128, "pooling": 20.0, "indices": {"zipf": 1.05}}
    if "different" not in model:
        return [{"count": ranks, **base}]
    return [{**base, "rows": 100_000 + 1_000 * i, "pooling": 5.0 + (37 * i % 100) / 4} for i in range(ranks)]


def once(model: str, ranks: int) -> dict[str, float | str]:
    """One prediction, in this process."""
    from stepsight import load_platform, predict
    from stepsight.records import override, read_toml
    from stepsight.workload.files import parse_workload

    name, changes = settings(model, ranks)
    begin = time.perf_counter()
    document = override(read_toml(EXAMPLES / name), dict(c.split("=") for c in changes), name)
    if model.startswith("dlrm"):
        document["tables"] = tables(model, ranks)
    workload = parse_workload(document, name)
    nodes = f"{ranks // 8}x8x" if ranks > 8 else "8x"
    platform = load_platform(f"{nodes}H100-SXM" + ("-400G" if ranks > 8 else ""))
    prediction = predict(workload, platform)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {
        "model": model, "ranks": ranks, "seconds": time.perf_counter() - begin, "peak_gb": peak_gb,
        "cpu_s": time.process_time(), "step_ms": prediction.step_time_us / 1e3,
    }  # fmt: skip


def asked(limit: list[int]) -> list[tuple[str, int]]:
    models = ["megatron", "gpt2 ddp", "dlrm, a table a rank", "dlrm, all tables different"]
    pairs = [(m, r) for m in models for r in limit if not m.startswith("dlrm") or r <= 1024]
    return pairs + ([(m, 1024) for m in models[2:]] if max(limit) >= 1024 else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "RANKS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(once(arguments.one[0], int(arguments.one[1]))))
        return
    rows = []
    for model, ranks in asked([int(r) for r in arguments.ranks.split(",")]):
        command = [sys.executable, __file__, "--one", model, str(ranks)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        row = json.loads(done.stdout)
        seconds, gb = BARS.get((model, ranks), (None, None))
        row["met"] = (seconds is None or row["cpu_s"] < seconds) and (gb is None or row["peak_gb"] < gb)
        rows.append({**row, "limit_s": seconds, "limit_gb": gb})
        if not arguments.json:
            show(rows[-1])
    if arguments.json:
        print(json.dumps({"rows": rows, "growth_exponent": exponents(rows)}, indent=2))
    else:
        for model, slope in exponents(rows).items():
            print(f"{model:<28} time grows as ranks^{slope:.2f}")
    sys.exit(0 if all(row["met"] for row in rows) else 1)


def show(row: dict[str, Any]) -> None:
    limits = [
        f"{row['limit_s']:g} s" if row["limit_s"] else "",
        f"{row['limit_gb']:g} GB" if row["limit_gb"] else "",
    ]
    bar = " and ".join(text for text in limits if text)
    word = f"  {'met' if row['met'] else 'MISSED'} (under {bar})" if bar else ""
    taken = f"{row['seconds']:7.2f} s (CPU {row['cpu_s']:5.2f} s) {row['peak_gb']:6.2f} GB"
    print(f"{row['model']:<28} {row['ranks']:>6} ranks {taken}{word}", flush=True)


def exponents(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The least-squares slope of log(time) over log(ranks), by model."""
    found = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        points = [(math.log(r["ranks"]), math.log(r["cpu_s"])) for r in rows if r["model"] == model]
        mean_x, mean_y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
        wide = sum((x - mean_x) ** 2 for x, _ in points)
        if wide > 0:
            found[model] = sum((x - mean_x) * (y - mean_y) for x, y in points) / wide
    return found


if __name__ == "__main__":
    main()
