"""The same DLRM with other tables: read from a file, or drawn as a random task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from stepsight.tables.sharders import SHARDERS
from stepsight.tables.table import Table, check_tables
from stepsight.tables.tasks import Task, random_task
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.dlrm.config import DlrmConfig
from stepsight.workload.training import Training

_DRAWN = re.compile(r"(heavy|mixed)(?::(\d+))?")


def with_tables(workload: DlrmWorkload, tables: Sequence[Table]) -> DlrmWorkload:
    """The workload with these tables, placed by its usual sharder until a better plan is known."""
    check_tables(tables)
    ranks = workload.ranks
    plan = SHARDERS["size_lookup_greedy"](tables, ranks)
    return DlrmWorkload(replace(workload.config, tables=tuple(tables), plan=plan))


def drawn_tables(text: str, ranks: int) -> tuple[Table, ...] | None:
    """The tables of ``heavy:SEED`` or ``mixed:SEED``; None where the text is something else."""
    match = _DRAWN.fullmatch(text)
    if not match:
        return None
    return random_task(ranks, int(match[2] or 0), heavy=match[1] == "heavy").tables


def task_workload(
    task: Task, *, features: int = 512, bottom: Sequence[int] = (512, 1024, 256, 128),
    top: Sequence[int] = (1024, 512, 256, 1), interaction: str = "cat", training: Training | None = None,
) -> DlrmWorkload:  # fmt: skip
    """A task's DLRM, with the dense part of METHOD §7 unless stated otherwise."""
    plan = SHARDERS["size_lookup_greedy"](task.tables, task.ranks)
    return DlrmWorkload(
        DlrmConfig(
            task.name, task.batch, features, tuple(bottom), tuple(top), interaction, task.tables,
            training or Training(), task.ranks, plan,
        )
    )  # fmt: skip
