"""The single-GPU DLRM study (2022): its three models, and how fast its boards ran their kernels.

The study's plot gives step times, and the errors of its own predictor for active and total time, from
which the measured active time follows. A board's speed is that of the models' kernels against it. A model
is predicted with the speed that the other models show on that board; to see what that rests on, also with
the speed of the other boards, and with that of the other batch sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import msgspec
import numpy as np

from stepsight.tables.criteo import CRITEO, CRITEO_TB_ROWS, ORDERED

GPUS = {"V100": "V100-SXM2-16G", "Xp": "TITAN-Xp", "P100": "P100-PCIE-16G"}
MODELS = ("DLRM_default", "DLRM_MLPerf", "DLRM_DDP")
CLIPPED_PCT = -35.0
"""Where the plot's axis ends: such an error says only that the active time was below."""
FILE = "dlrm_boards.json"


def workload_document(model: str, batch: int) -> dict[str, Any]:
    """One of the measured DLRMs as a workload file would describe it."""
    tables: list[dict[str, Any]]
    if model == "DLRM_default":
        dense = {"features": 512, "bottom": [512, 64], "top": [1024, 1024, 1024, 1]}
        tables, loss = (
            [{"count": 8, "rows": 1_000_000, "dim": 64, "pooling": 100.0, "indices": ORDERED}],
            "mse",
        )
    elif model == "DLRM_DDP":
        dense = {"features": 128, "bottom": [128, 128, 128], "top": [512, 512, 512, 256, 1]}
        tables, loss = [{"count": 8, "rows": 80_000, "dim": 128, "pooling": 10.0, "indices": ORDERED}], "bce"
    else:
        dense = {"features": 13, "bottom": [512, 256, 128], "top": [1024, 1024, 512, 256, 1]}
        tables = [{"rows": rows, "dim": 128, "pooling": 1.0, "indices": CRITEO} for rows in CRITEO_TB_ROWS]
        loss = "bce"
    return {
        "kind": "dlrm", "batch": batch, "dense": {**dense, "interaction": "dot"}, "tables": tables,
        # As the kernel lists of the same programs show: gradients filled with zeros, the loss read, the
        # table-batched lookups and PyTorch of 2020. DLRM's loop synchronises before it looks at the clock.
        "training": {"optimizer": "sgd", "loss": loss, "zero_grad": "zero", "read_loss": True,
                     "sparse_update": "scattered", "stack": "2020", "synchronize": True},
        "parallel": {"ranks": 1},
    }  # fmt: skip


def active_ms(row: Mapping[str, str]) -> float | None:
    """The measured active time that a row's errors imply; None where the plot clips one of them."""
    kernels, active = row["paper_kernel_only_error_pct"], row["paper_active_error_pct"]
    if not kernels or not active or float(kernels) <= CLIPPED_PCT:
        return None
    return float(row["iter_ms_digitised"]) * (1 + float(kernels) / 100) / (1 + float(active) / 100)


@dataclass(frozen=True, slots=True)
class ActiveRow:
    """A board's measured active time for one model beside the one that the kernel models say."""

    gpu: str
    model: str
    measured_ms: float
    predicted_ms: float
    batch: int = 0


def board_speeds(rows: Sequence[ActiveRow]) -> dict[str, dict[str, float]]:
    """By board, the speed that serves each model: that of the other models' rows on it."""
    found: dict[str, dict[str, float]] = {}
    for gpu in dict.fromkeys(row.gpu for row in rows):
        own = [row for row in rows if row.gpu == gpu]
        found[gpu] = {
            model: _speed(row for row in own if row.model != model)
            for model in MODELS
            if any(row.model != model for row in own)
        }
    return found


def speeds_without(rows: Sequence[ActiveRow], left_out: Callable[[ActiveRow], str]) -> dict[str, float]:
    """For each value of ``left_out`` the speed that rows with other values show."""
    return {
        value: _speed(row for row in rows if left_out(row) != value)
        for value in dict.fromkeys(map(left_out, rows))
        if any(left_out(row) != value for row in rows)
    }


def batch_speeds(rows: Sequence[ActiveRow]) -> dict[str, dict[str, float]]:
    """By board, the speed that serves each batch size: that of its rows of other sizes."""
    return {
        gpu: speeds_without([row for row in rows if row.gpu == gpu], lambda row: str(row.batch))
        for gpu in dict.fromkeys(row.gpu for row in rows)
    }


def _speed(rows: Iterable[ActiveRow]) -> float:
    ratios = [np.log(row.predicted_ms / row.measured_ms) for row in rows]
    return round(float(np.exp(np.mean(ratios))), 3)


@dataclass(frozen=True, slots=True)
class BoardSpeeds:
    """Speeds of the study's boards (`python -m lab fit boards`), each without the rows that it serves."""

    without_model: Mapping[str, Mapping[str, float]]
    without_board: Mapping[str, float]
    without_batch: Mapping[str, Mapping[str, float]]

    def of(self, gpu: str, model: str, batch: int, left_out: str) -> float:
        """The speed for a row when ``left_out`` (model, GPU or batch) has no vote; 1 without others."""
        if left_out == "GPU":
            return self.without_board.get(gpu, 1.0)
        by_value = (self.without_batch if left_out == "batch" else self.without_model).get(gpu, {})
        known = by_value.get(str(batch) if left_out == "batch" else model)
        return known or (float(np.mean(list(by_value.values()))) if by_value else 1.0)


def shipped_speeds() -> BoardSpeeds:
    """Those that come with stepsight."""
    content = (resources.files("lab.fit") / FILE).read_bytes()
    found = msgspec.json.decode(content)
    return BoardSpeeds(found["speeds"], found["without_board"], found["without_batch"])
