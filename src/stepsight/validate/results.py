"""Results of topics as files, written when a topic is done: a long run can be resumed and reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stepsight.documents import to_json, write_whole
from stepsight.errors import InputError
from stepsight.score import Score


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What one topic's command found. ``other`` is the JSON of a topic that answers with more than scores."""

    topic: str
    command: str
    seconds: float
    scores: tuple[Score, ...] = ()
    other: Any = None

    @property
    def missed(self) -> int:
        return sum(score.met is False for score in self.scores)


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
    except OSError as error:
        raise InputError(
            str(path), f"cannot be read ({error.strerror})", "run `python -m lab score all`"
        ) from None
    except msgspec.DecodeError as error:
        raise InputError(str(path), f"is no result of a topic ({error})", "run the topic again") from None


def load_results(folder: Path, topics: Sequence[str]) -> list[TopicResult]:
    """All results of a folder, in the order of ``topics``; others after them."""
    found = {path.stem: load_result(path) for path in sorted(folder.glob("*.json"))}
    order = [*topics, *(name for name in found if name not in topics)]
    return [found[name] for name in order if name in found]
