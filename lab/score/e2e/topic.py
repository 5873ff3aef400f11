"""Whole steps against measured ones: DLRM and transformers from their sizes, and traces."""

from __future__ import annotations

from pathlib import Path

import click

from lab.datasets.folder import data_folder
from lab.score.e2e import dlrm as dlrm_steps
from lab.score.e2e import dlrm_multi
from lab.score.e2e import gpt as gpt_steps
from lab.score.e2e import nlp as nlp_steps
from lab.score.steps import show_rows
from stepsight.score import Score
from stepsight.validate.scoreboard import show

TABLES = (dlrm_steps, dlrm_multi, nlp_steps, gpt_steps)
"""Modules with ``rows(data)``, every measured step predicted, and ``scores(rows)``."""


def scores(data: Path) -> list[Score]:
    """Every end-to-end score; no step time takes part in a fit, so all rows count."""
    found = [line for table in TABLES for line in table.scores(table.rows(data))]
    return [*found, *_traces(data / "traces")]


def _traces(folder: Path) -> list[Score]:
    if not folder.is_dir():
        return []
    from lab.score.traces import topic as traces

    return traces.host_scores(folder)


@click.command("e2e")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--traces", type=click.Path(path_type=Path), help="Score only the traces in this folder.")
@click.option("--each", "each_row", is_flag=True, help="List every measured step with its prediction.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: Path | None, traces: Path | None, each_row: bool, as_json: bool) -> None:
    """Whole steps: DLRM, NLP and GPT training, and traces."""
    if traces:
        show(_traces(traces), as_json=as_json)
    elif each_row:
        folder = data_folder(data)
        show_rows([row for table in TABLES for row in table.rows(folder)], as_json=as_json)
    else:
        show(scores(data_folder(data)), as_json=as_json)
