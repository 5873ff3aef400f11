"""Draws of live models in the scorecard: each adds its lines beside those of other draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepsight.score import Score
from stepsight.validate.results import TopicResult, load_result, save_result

TOPIC, COMMAND = "live", "stepsight validate live -p FOLDER --seed N --results results"


def add_draw(folder: Path, platform: str, seed: int, lines: Sequence[Score], seconds: float) -> Path:
    """Put a draw's lines into the folder's result; those of the same draw and kind are replaced."""
    path = folder / f"{TOPIC}.json"
    before = load_result(path) if path.is_file() else TopicResult(TOPIC, COMMAND, 0.0)
    named = {f"draw {seed} on {platform}, {line.name}": line for line in lines}
    kept = [line for line in before.scores if line.name not in named]
    new = [replace(line, name=name, exposure="blind") for name, line in named.items()]
    return save_result(
        folder, TopicResult(TOPIC, COMMAND, before.seconds + seconds, (*kept, *new), before.other)
    )
