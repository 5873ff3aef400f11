"""Planning time and predicted step of our search, the greedy sharders and TorchRec's planner.

    python benchmarks/sharding.py                              # ours and the sharders'
    python benchmarks/sharding.py --torchrec --plans DIR       # first run TorchRec's planner (slow)
    python benchmarks/sharding.py --plans DIR                  # with the plans that it left there

The tables are drawn from the synthetic population of ``lab.score.sharding.tasks`` (seed 0), at
most two million rows each so that 856 of them fit on 8 × 80 GB; 2,048 samples a rank.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from lab.score.sharding.tasks import Scale, Task, population, task_workload
from stepsight.platform.load import load_platform
from stepsight.sharding.rules import Rules
from stepsight.sharding.search import search
from stepsight.sharding.steps import PlanPricer
from stepsight.tables.sharders import SHARDERS, random
from stepsight.tables.table import Table
from stepsight.tables.torchrec_plan import plan_from_document

SIZES = [(tables, ranks) for tables in (26, 100, 400, 856) for ranks in (8, 16, 64)]
PLATFORMS = {8: "8xA100-SXM4-80G", 16: "2x8xA100-SXM4-80G", 64: "8x8xA100-SXM4-80G"}
BATCH_PER_RANK = 2048
GREEDY = ("size_greedy", "lookup_greedy", "norm_lookup_greedy", "size_lookup_greedy")
TABLE_SHARE = 0.85
"""Of a GPU's memory, as TorchRec's planner reserves by default."""


def drawn(count: int) -> tuple[Table, ...]:
    return population(count, 0, Scale(most_rows=2_000_000))


def plan_with_torchrec(tables: tuple[Table, ...], ranks: int) -> tuple[float, dict[str, object]]:
    """Seconds and plan of TorchRec's planner with its default proposers."""
    import torch
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology

    configs = [
        EmbeddingBagConfig(
            num_embeddings=t.rows, embedding_dim=t.dim, name=t.name, feature_names=[f"f_{t.name}"]
        )
        for t in tables
    ]
    planner = EmbeddingShardingPlanner(
        topology=Topology(ranks, "cuda", hbm_cap=80 * 10**9, local_world_size=min(ranks, 8)),
        batch_size=BATCH_PER_RANK,
        constraints={t.name: ParameterConstraints(pooling_factors=[t.pooling]) for t in tables},
        debug=False,
    )
    collection = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    began = time.perf_counter()
    plan = planner.plan(collection, [EmbeddingBagCollectionSharder()])
    return time.perf_counter() - began, plan._serialize()


def row(count: int, ranks: int, plans: Path | None) -> str:
    """One line of the table, times in ms."""
    tables = drawn(count)
    task = Task(f"{count}x{ranks}", tables, BATCH_PER_RANK * ranks, ranks, False)
    workload, platform = task_workload(task), load_platform(PLATFORMS[ranks])
    began = time.perf_counter()
    pricer = PlanPricer(workload, platform)
    found = search(pricer, Rules(TABLE_SHARE * platform.spec.gpu.memory_gb * 1e9))
    seconds = time.perf_counter() - began
    greedy = [pricer.step_us([SHARDERS[name](tables, ranks)])[0, 0] / 1e3 for name in GREEDY]
    file = plans / f"tr_{count}_{ranks}.json" if plans else None
    theirs = ""
    if file and file.exists():
        saved = json.loads(file.read_text())
        plan = plan_from_document(saved["document"], tables, ranks)
        step = pricer.step_us([plan])[0, 0]
        theirs = f"{step / 1e3:8.2f} | {saved['seconds']:6.1f}"
    return (
        f"| {count} | {ranks} | {seconds:5.2f} | {found.step_us / 1e3:8.2f} | {found.gap:6.1%} | "
        + " | ".join(f"{us:8.2f}" for us in greedy)
        + f" | {theirs or '         –'} |"
    )


def thousand_plans() -> str:
    tables = drawn(100)
    pricer = PlanPricer(task_workload(Task("100x8", tables, 16384, 8, False)), load_platform(PLATFORMS[8]))
    plans = [random(tables, 8, seed) for seed in range(1000)]
    began = time.perf_counter()
    times = pricer.step_us(plans)
    seconds = time.perf_counter() - began
    return f"1,000 plans of a DLRM with 100 tables on 8 GPUs: {seconds:.2f} s ({np.ptp(times):.0f} µs apart)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torchrec", action="store_true")
    parser.add_argument("--plans", type=Path)
    parser.add_argument("--only", help="such as 100x8")
    arguments = parser.parse_args()
    sizes = [s for s in SIZES if not arguments.only or f"{s[0]}x{s[1]}" == arguments.only]
    if arguments.torchrec:
        for count, ranks in sizes:
            seconds, document = plan_with_torchrec(drawn(count), ranks)
            file = arguments.plans / f"tr_{count}_{ranks}.json"
            file.write_text(json.dumps({"seconds": seconds, "document": document}))
        return
    print(thousand_plans())
    heads = [
        "tables",
        "GPUs",
        "planning s",
        "step ms",
        "above bound",
        *GREEDY,
        "TorchRec ms",
        "its planning s",
    ]
    print("| " + " | ".join(heads) + " |")
    print("|" + "---:|" * len(heads))
    for count, ranks in sizes:
        print(row(count, ranks, arguments.plans), flush=True)


if __name__ == "__main__":
    main()
