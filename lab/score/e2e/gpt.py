"""Megatron-DeepSpeed GPT on A100s: tensor, pipeline and data parallel (``gpt_a100_*``), all rows.

fp16, full activation recomputation, 1F1B. The best public predictor reports MAPE 8.37 % on one node and
14.73 % on many. The rows are read and predicted as by ``lab score llm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.datasets.llm.files import cases, file_of
from lab.datasets.llm.layouts import GPT_NODES, GPT_ONE_NODE
from lab.score.llm.rows import Outcome, outcome
from lab.score.steps import StepRow, score
from stepsight.score import CHOSEN, FIT, Score

TOPIC = "e2e"
SETS = {"gpt_one_node": GPT_ONE_NODE, "gpt_nodes": GPT_NODES}


def rows(data: Path) -> list[StepRow]:
    """Both tables."""
    found = [(name, outcome(case)) for name, file in SETS.items() for case in cases(file_of(file), data)]
    return [_row(name, o) for name, o in found if o.timed]


def scores(found: Sequence[StepRow]) -> list[Score]:
    """One node and many nodes apart, as the public figures are."""
    names = {
        "gpt_one_node": ("GPT fp16 on 2–8 A100 (public best: MAPE 8.37 %)", FIT),
        "gpt_nodes": ("GPT fp16 on 64–512 A100 (public best: MAPE 14.73 %)", CHOSEN),
    }
    return [
        line
        for key, (name, exposure) in names.items()
        for line in score(TOPIC, name, [r for r in found if r.set == key], "all rows", exposure=exposure)
    ]


def _row(name: str, o: Outcome) -> StepRow:
    return StepRow(
        o.case.name, o.measured_ms, o.full.step_ms, o.full.naive_ms, o.full.low_ms, o.full.high_ms, set=name
    )
