"""Answers kept in a file, one a line, so that a search can be interrupted and taken up again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from stepsight.errors import InputError
from stepsight.journals import JsonLines
from stepsight.tune.trial import Row, row_of


class Journal:
    """Known answers by the key of their trial; new ones are appended as they come.

    A line that was cut off by an interruption is left out; anything else that is no row is an error.
    """

    def __init__(self, path: Path | None) -> None:
        self._lines: JsonLines | None = None
        self.known: dict[str, Row] = {}
        if path is None:
            return
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise InputError(
                f"--resume {path}", "is no file that can be written", "name a file in a folder that exists"
            )
        self._lines = JsonLines(path)
        for number, entry in self._lines.entries:
            try:
                self.known[entry["key"]] = row_of(entry["row"])
            except (ValueError, KeyError, TypeError):
                raise InputError(
                    f"{path}: line {number}", "is not a trial of stepsight", "name another file, or delete it"
                ) from None

    def __len__(self) -> int:
        return len(self.known)

    def get(self, key: str) -> Row | None:
        return self.known.get(key)

    def add(self, key: str, row: Row) -> None:
        self.known[key] = row
        if self._lines is not None:
            self._lines.add([{"key": key, "row": asdict(row)}])
