"""Answers kept in a file, one a line, so that a search can be interrupted and taken up again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stepsight.errors import InputError
from stepsight.journals import JsonLines
from stepsight.tune.evaluate import stamp
from stepsight.tune.trial import FAILED, Row, Trial, row_of


class Journal:
    """Answers to trials of one document by what they depend on; new ones are appended as they come.

    A line that was cut off by an interruption is left out; anything else that is no row is an error.
    Without a path nothing is kept.
    """

    def __init__(self, path: Path | None, document: Mapping[str, Any]) -> None:
        self._lines: JsonLines | None = None
        self._known: dict[str, Row] = {}
        if path is None:
            return
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise InputError(
                f"--resume {path}", "is no file that can be written", "name a file in a folder that exists"
            )
        self._document = _digest(_version(), document, stamp(str(document.get("file", ""))))
        self._lines = JsonLines(path)
        for number, entry in self._lines.entries:
            try:
                self._known[entry["key"]] = row_of(entry["row"])
            except (ValueError, KeyError, TypeError):
                raise InputError(
                    f"{path}: line {number}", "is not a trial of stepsight", "name another file, or delete it"
                ) from None

    def get(self, trial: Trial) -> Row | None:
        return None if self._lines is None else self._known.get(self.key(trial))

    def add(self, trial: Trial, row: Row) -> None:
        """Keep an answer; a trial whose worker died is asked again next time."""
        if self._lines is not None and row.status != FAILED:
            self._lines.add([{"key": self.key(trial), "row": asdict(row)}])

    def key(self, trial: Trial) -> str:
        """What the answer depends on: the version, the model, the settings, the platform and its files."""
        return _digest(self._document, asdict(trial), stamp(trial.platform))


def _digest(*parts: object) -> str:
    content = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


def _version() -> str:
    """Another version's models answer otherwise."""
    try:
        return version("stepsight")
    except PackageNotFoundError:
        return ""
