"""Answers kept in a file, one per line, so that an interrupted search can resume."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from stepsight.documents import JsonLines, digest, files_read
from stepsight.errors import InputError
from stepsight.tuning.trial import FAILED, STATUSES, Row, Trial


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A row, the key of its trial, and the digest of both: a line that somebody edited is refused."""

    key: str
    row: Row
    check: str


class Journal:
    """Answers to trials of one document by what they depend on; new ones are appended as they come.

    A line that was cut off by an interruption is left out; anything else that is no row is an error.
    Without a path nothing is kept. ``where`` is the workload's file: the document's names are relative to it.
    """

    def __init__(self, path: Path | None, document: Mapping[str, Any], where: str = "") -> None:
        self._lines: JsonLines | None = None
        self._known: dict[str, Row] = {}
        if path is None:
            return
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise InputError(
                f"--resume {path}", "is no file that can be written", "name a file in a folder that exists"
            )
        self._folder = Path(where).parent
        self._document = digest(_version(), document, files_read(document, self._folder))
        self._read: dict[str, dict[str, str]] = {}
        self._lines = JsonLines(path)
        for number, entry in self._lines.entries:
            line = _line(entry)
            if line is None:
                raise InputError(
                    f"{path}: line {number}", "is not a trial that stepsight wrote", "delete the line"
                )
            self._known[line.key] = line.row

    def get(self, trial: Trial) -> Row | None:
        return None if self._lines is None else self._known.get(self.key(trial))

    def add(self, trial: Trial, row: Row) -> None:
        """Keep an answer; a trial whose worker died is asked again next time."""
        if self._lines is not None and row.status != FAILED:
            key, made = self.key(trial), msgspec.to_builtins(row)
            self._lines.add([{"key": key, "row": made, "check": digest(key, made)}])

    def key(self, trial: Trial) -> str:
        """What the answer depends on: the version, the model, the settings, the platform, and the content of
        every file that one of them names."""
        named = (
            trial.platform,
            *trial.overrides,
            *(v for v in trial.settings.values() if isinstance(v, str)),
        )
        asked = "\0".join(named)
        if asked not in self._read:
            self._read[asked] = files_read(named, self._folder)
        return digest(self._document, asdict(trial), self._read[asked])


def _line(entry: Any) -> _Line | None:
    """A line as it was written; None for anything else."""
    try:
        line = msgspec.convert(entry, _Line)
    except (msgspec.ValidationError, TypeError):
        return None
    figures = (*entry["row"].values(), *line.row.shares.values())
    finite = all(math.isfinite(figure) for figure in figures if isinstance(figure, float))
    whole = line.check == digest(line.key, entry["row"])
    return line if whole and finite and line.row.status in STATUSES else None


def _version() -> str:
    """Another version's models answer otherwise."""
    try:
        return version("stepsight")
    except PackageNotFoundError:
        return ""
