"""``python -m lab score capture --training``: torchtitan's published runs, captured from a similar script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.datasets.folder import read_csv
from lab.datasets.llm import published
from lab.score.capture.scripts import captured
from stepsight.errors import StepsightError
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict_captured

FILE = "other_training.csv"
SOURCE = "pytorch/torchtitan"
SCRIPT = "llama_fsdp2_tp.py"
_SIZES = {"8.03": "8b", "70.6": "70b"}
_CHECKPOINT = {"selAC": "alternate", "fullAC": "full", "per-op SAC": "selective"}
"""How rows name activation checkpointing; torchtitan's "selective" of 2024 recomputes every second layer."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A row and its prediction; ``problem`` says why it was not captured."""

    name: str
    measured_ms: float
    predicted_ms: float = 0.0
    low_ms: float = 0.0
    high_ms: float = 0.0
    compiled: bool = False
    problem: str = ""


def rows(data: Path, only: tuple[str, ...] = (), keep: Path | None = None) -> Iterator[PublishedRow]:
    """torchtitan's rows of the file."""
    folder = data / "e2e" if (data / "e2e").is_dir() else data
    for row in read_csv(folder / FILE):
        name = f"{row['model']} {row['gpus']} GPUs, {row['parallelism']}, {row['precision']}"
        if row["source"] != SOURCE or (only and not any(text in name for text in only)):
            continue
        lacks = _lacks(row)
        if lacks:
            yield PublishedRow(name, float(row["iter_time_ms"]), problem=lacks)
            continue
        try:
            yield _captured(name, row, keep)
        except StepsightError as error:
            yield PublishedRow(name, float(row["iter_time_ms"]), problem=str(error))


def _lacks(row: dict[str, str]) -> str:
    """What the script does not do."""
    plan = row["parallelism"]
    for text, why in (("PP", "pipeline stages"), ("CP", "context parallelism"), ("Async", "asynchronous TP")):
        if text in plan:
            return f"the script has no {why}"
    if row["precision"] != "bf16":
        return "fp8 products need torchao's kernels"
    return "" if row["params_b"] in _SIZES else "another model"


def _captured(name: str, row: dict[str, str], keep: Path | None) -> PublishedRow:
    plan, gpus = row["parallelism"], int(float(row["gpus"]))
    tensor = int((re.findall(r"TP(\d+)", plan) or ["1"])[0])
    checkpoint = next((how for text, how in _CHECKPOINT.items() if text in plan), "none")
    compiled = "compile" in plan
    batch, sequence = (str(int(float(row[column]))) for column in ("micro_batch", "seq"))
    arguments = [
        "--size", _SIZES[row["params_b"]], "--tensor", str(tensor), "--batch", batch, "--sequence", sequence,
        "--checkpoint", checkpoint, *(["--compile"] if compiled else []),
    ]  # fmt: skip
    case = published.case(row)
    platform = load_platform(case.platform, case.overrides)
    made = predict_captured(captured(SCRIPT, arguments, platform, gpus, keep), platform)
    return PublishedRow(
        name, float(row["iter_time_ms"]), made.step_us / 1e3, made.low_us / 1e3, made.high_us / 1e3, compiled
    )
