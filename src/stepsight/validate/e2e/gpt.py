"""Megatron-DeepSpeed GPT on A100s: tensor, pipeline and data parallel (``gpt_a100_*.csv``).

fp16, full activation recomputation, 1F1B. The best public predictor reports MAPE 8.37 % on
one node and 14.73 % on many.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.score import Score
from stepsight.validate.steps import StepRow, each, read_csv, score
from stepsight.workload.files import parse_workload

TOPIC = "e2e"
SINGLE, MULTI = "e2e/gpt_a100_single_node.csv", "e2e/gpt_a100_multi_node.csv"
GPUS_PER_NODE = 8
ONE_IN, MANY_IN = 12, 4
"""The tables hold 709 and 48 rows; every so manieth is predicted, which keeps the score to a minute."""
VOCAB = 51200
"""GPT-2's 50,257 tokens padded to a multiple of 128 × tensor parallelism, as Megatron does (for 8)."""


def rows(data: Path) -> list[StepRow]:
    """A fixed sample of both tables."""
    one = [{**r, "where": "one node"} for r in read_csv(data / SINGLE)[::ONE_IN]]
    many = [{**r, "where": "nodes"} for r in read_csv(data / MULTI)[::MANY_IN]]
    return each((r for r in (*one, *many) if r["iteration time (ms)"]), predicted)


def scores(found: Sequence[StepRow]) -> list[Score]:
    """One node and many nodes apart, as the public figures are."""
    sample = f"every {ONE_IN}th row of one node, every {MANY_IN}th of many"
    used = f"{sample}; none was fitted, the pace of A100 hosts was chosen in sight of them"
    one = [r for r in found if r.name.startswith("one node")]
    many = [r for r in found if r.name.startswith("nodes")]
    return [
        *score(TOPIC, "GPT fp16 on 2–8 A100 (public best: MAPE 8.37 %)", one, used),
        *score(TOPIC, "GPT fp16 on 64–512 A100 (public best: MAPE 14.73 %)", many, used),
    ]


def document(row: dict[str, str]) -> dict[str, Any]:
    """The workload of one row."""

    def n(column: str) -> int:
        return int(float(row[column]))

    data = n("data parallelism")
    return {
        "kind": "transformer", "family": "megatron", "layers": n("# layers"), "hidden": n("hidden size"),
        "heads": n("attention heads"), "vocab": VOCAB, "sequence": n("sequence length"),
        "batch_per_rank": n("global batch") // data,
        "training": {"precision": "fp16", "optimizer": "adamw", "fused_optimizer": True, "recompute": True,
                     "master_weights": True},
        "parallel": {
            "data": data, "tensor": n("tensor parallelism"), "pipeline": n("pipeline parallelism"),
            "micro_batch": n("micro batch"),
        },
    }  # fmt: skip


def predicted(row: dict[str, str]) -> StepRow:
    """One row from a standing start: mixed-precision Megatron ends each step with a host sync,
    the overflow check of its gradients over all ranks, so no step overlaps the next."""
    workload = parse_workload(document(row), f"{SINGLE} or {MULTI}")
    nodes = -(-workload.ranks // GPUS_PER_NODE)
    name = f"{min(workload.ranks, GPUS_PER_NODE)}xA100-SXM4-80G"
    prediction = predict(workload, load_platform(name if nodes == 1 else f"{nodes}x{name}-200G"), steps=1)
    label = (
        f"{row['where']} h{row['hidden size']} l{row['# layers']} s{row['sequence length']} "
        f"b{row['global batch']}/{row['micro batch']} t{row['tensor parallelism']} "
        f"d{row['data parallelism']} p{row['pipeline parallelism']}"
    )
    return StepRow(
        label, float(row["iteration time (ms)"]), prediction.step_us / 1e3, prediction.naive_us / 1e3,
        prediction.low_us / 1e3, prediction.high_us / 1e3,
    )  # fmt: skip
