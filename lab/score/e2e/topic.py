"""Whole steps against measured ones: DLRM and transformers from their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from lab.datasets.folder import data_folder
from lab.score.e2e import dlrm as dlrm_steps
from lab.score.e2e import dlrm_hugectr, dlrm_multi
from lab.score.e2e import gpt as gpt_steps
from lab.score.e2e import nlp as nlp_steps
from lab.score.frame import show
from lab.score.steps import StepRow, show_rows, summary
from stepsight.score import Score

TABLES = (dlrm_steps, dlrm_multi, dlrm_hugectr, nlp_steps, gpt_steps)
"""Modules with ``rows(data)``, every measured step predicted, and ``scores(rows)``."""


FILES = {
    "nlp_train": "nlp_fp32", "nlp_forward": "nlp_fp32", "nlp_split_train": "nlp_fp32",
    "nlp_split_forward": "nlp_fp32", "nlp_other_train": "nlp_fp32_more", "nlp_other_forward": "nlp_fp32_more",
    "gpt_one_node": "gpt_a100_single_node", "gpt_nodes": "gpt_a100_multi_node",
    "dlrm_one_gpu": "dlrm_single_gpu", dlrm_hugectr.SET: "mlperf_dlrm_dcnv2",
}  # fmt: skip
"""The file that a set of steps is from; others are from ``dlrm_multi_gpu``."""


def scores(data: Path) -> list[Score]:
    """Every end-to-end score; no step time takes part in a fit, so all rows count."""
    return lines(steps(data))


def steps(data: Path) -> dict[ModuleType, list[StepRow]]:
    """Every measured step with its prediction, by the module that scores it."""
    return {table: table.rows(data) for table in TABLES}


def lines(found: Mapping[ModuleType, Sequence[StepRow]]) -> list[Score]:
    return [line for table, rows in found.items() for line in table.scores(rows)]


def figures(found: Mapping[ModuleType, Sequence[StepRow]]) -> dict[str, dict[str, Any]]:
    """What ``--json`` has by file: its rows that have a model, their errors, and the same by set."""
    by_file: dict[str, dict[str, list[StepRow]]] = {}
    for row in (row for rows in found.values() for row in rows):
        file = FILES.get(row.set, "dlrm_multi_gpu")
        by_file.setdefault(file, {}).setdefault(row.set, []).append(row)
    return {
        file: {**summary([r for rows in sets.values() for r in rows]),
               "sets": {name: summary(rows) for name, rows in sets.items()}}
        for file, sets in by_file.items()
    }  # fmt: skip


@click.command("e2e")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--each", "each_row", is_flag=True, help="List every measured step with its prediction.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: Path | None, each_row: bool, as_json: bool) -> None:
    """Whole steps: DLRM, NLP and GPT training."""
    if each_row:
        show_rows([row for rows in steps(data_folder(data)).values() for row in rows], as_json=as_json)
    else:
        found = steps(data_folder(data))
        show(lines(found), figures(found), as_json=as_json)
