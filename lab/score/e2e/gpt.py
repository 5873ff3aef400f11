"""Megatron-DeepSpeed GPT on A100s: tensor, pipeline and data parallel (``gpt_a100_*.csv``), all rows.

fp16, full activation recomputation, 1F1B. The best public predictor reports MAPE 8.37 % on
one node and 14.73 % on many. The rows are read and predicted as by ``validate llm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.score.llm.gpt import MULTI, SINGLE, case
from lab.score.llm.rows import outcome
from lab.score.steps import StepRow, each, read_csv, score
from stepsight.score import FIT, Score

TOPIC = "e2e"


def rows(data: Path) -> list[StepRow]:
    """Both tables."""
    one = [{**r, "where": "one node"} for r in read_csv(data / "e2e" / SINGLE)]
    many = [{**r, "where": "nodes"} for r in read_csv(data / "e2e" / MULTI)]
    return each((r for r in (*one, *many) if r["iteration time (ms)"]), predicted)


def scores(found: Sequence[StepRow]) -> list[Score]:
    """One node and many nodes apart, as the public figures are."""
    used = "all rows; constants of the framework fitted without the row's model and number of GPUs"
    one = [r for r in found if r.name.startswith("one node")]
    many = [r for r in found if r.name.startswith("nodes")]
    return [
        *score(TOPIC, "GPT fp16 on 2–8 A100 (public best: MAPE 8.37 %)", one, used, exposure=FIT),
        *score(TOPIC, "GPT fp16 on 64–512 A100 (public best: MAPE 14.73 %)", many, used),
    ]


def predicted(row: dict[str, str]) -> StepRow:
    """One row beside its prediction."""
    file = SINGLE if row["where"] == "one node" else MULTI
    found = outcome(replace(case(row), file=file))
    return StepRow(
        f"{row['where']} {found.case.name}",
        float(row["iteration time (ms)"]),
        found.predicted_ms,
        found.naive_ms,
        found.low_ms,
        found.high_ms,
    )
