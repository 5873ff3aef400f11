"""What topics found, as files: a long run is resumed and reported from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stepsight.documents import to_json, write_whole
from stepsight.errors import InputError
from stepsight.score import Score


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What one topic's command found."""

    topic: str
    command: str
    seconds: float
    scores: tuple[Score, ...] = ()


def save_result(folder: Path, result: TopicResult) -> Path:
    """Write ``folder/TOPIC.json`` whole."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.topic}.json"
    write_whole(path, to_json(result))
    return path


def load_result(path: Path) -> TopicResult:
    """Read what `save_result` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TopicResult)
    except msgspec.DecodeError as error:
        raise InputError(str(path), f"is no result of a topic ({error})", "run the topic again") from None


def load_results(folder: Path, topics: Sequence[str]) -> list[TopicResult]:
    """All results of a folder, in the order of ``topics``; others after them."""
    found = {path.stem: load_result(path) for path in sorted(folder.glob("*.json"))}
    order = [*topics, *(name for name in found if name not in topics)]
    return [found[name] for name in order if name in found]
