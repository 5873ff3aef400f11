"""A search as JSON, rows as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stepsight.tune.answer import Answer, why
from stepsight.tune.flags import Flags
from stepsight.tune.search import within_noise
from stepsight.tune.trial import Row


def answer_document(answer: Answer, written: Sequence[Flags] = ()) -> dict[str, Any]:
    """Everything a script may want of a search."""
    return {
        "workload": answer.workload, "platform": answer.platform, "objective": answer.objective,
        "candidates": len(answer.rows), "counts": dict(answer.counts), "refused": dict(answer.refused),
        "seconds": answer.seconds, "epoch_samples": answer.epoch_samples,
        "cost_per_epoch": answer.best.cost_of(answer.epoch_samples) if answer.epoch_samples else None,
        "top": [
            {**row_document(r), "why": why(r, answer.best),
             "within_noise": within_noise(r, answer.best, answer.objective)}
            for r in answer.top
        ],
        "framework": answer.framework, "ties": len(answer.ties),
        "too_close_to_call": [row_document(r) for r in answer.ties],
        "maybe": row_document(answer.maybe) if answer.maybe else None,
        "one_step_away": [
            {"dimension": n.dimension, "value": n.value, "slower": n.slower, "row": row_document(n.row)}
            for n in answer.neighbours
        ],
        "front": [row_document(r) for r in answer.front],
        "flags": {one.framework: {"text": one.text, "lacks": one.lacks, "note": one.note} for one in written},
    }  # fmt: skip


def row_document(row: Row) -> dict[str, Any]:
    return {**asdict(row), "fits": row.fits, "cost_per_million_tokens": row.cost_per_million_tokens}


def rows_csv(rows: Sequence[Row]) -> str:
    """One line a row, a column a field."""
    records = [row.record() for row in rows]
    columns = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()
