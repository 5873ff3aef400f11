"""One configuration that is asked about, the answer to it, and the file that keeps answers.

Trials and rows are plain values that travel between processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stepsight import __version__
from stepsight.documents import JsonLines, digest, files_read
from stepsight.errors import InputError
from stepsight.prediction.memory import FITS

Setting = str | int | float | bool


def setting_text(value: Setting) -> str:
    """A setting's value in words; a list of names as its members."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and value.startswith('["'):
        return value.strip("[]").replace('"', "").replace(",", "+")
    return str(value)


PRICED, TOO_LARGE, ILLEGAL, BOUNDED, FAILED = "priced", "too large", "illegal", "bounded", "failed"
"""What became of a trial: it has a time; its memory does not fit; the workload refuses it; a bound shows that
it cannot be among the best; the worker that ran it died twice."""


STATUSES = (PRICED, TOO_LARGE, ILLEGAL, BOUNDED, FAILED)


@dataclass(frozen=True, slots=True)
class Trial:
    """A workload's document with ``settings`` put in, on a platform.

    ``settings`` are field paths (``parallel.tensor``) with their values. ``least_fit`` is the probability to
    fit into memory below which nothing is priced; ``intervals`` asks for the step's interval as well.
    """

    settings: Mapping[str, Setting]
    platform: str
    overrides: tuple[str, ...] = ()
    price_per_gpu_hour: float | None = None
    least_fit: float = 0.0
    intervals: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """The answer to a trial.

    ``memory_gb`` is what the fullest rank needs and ``usable_gb`` what it may take of its GPU, both in 1e9
    bytes; ``fit`` is the probability that it fits. ``shares`` say where the step goes, as shares of it, under
    the names of a prediction's breakdown; a language model's ``exposed AXIS`` communication is by axis.
    ``energy_j`` is what all boards draw in a step; None where their power is not known. ``framework`` is the
    one that a language model's row assumes, ``chosen`` what it left open and its GPU decided. ``reason``
    says why a trial has no time.
    """

    settings: Mapping[str, Setting]
    platform: str
    status: str = PRICED
    ranks: int = 0
    step_time_us: float = 0.0
    low_us: float = 0.0
    high_us: float = 0.0
    memory_gb: float = 0.0
    usable_gb: float = 0.0
    fit: float = 0.0
    samples_per_s: float = 0.0
    tokens_per_s: float = 0.0
    mfu: float = 0.0
    cost_per_step: float | None = None
    energy_j: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    framework: str = ""
    chosen: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def priced(self) -> bool:
        return self.status == PRICED

    @property
    def fits(self) -> bool:
        """Whether the fullest rank more likely than not fits: the verdict of `stepsight predict`."""
        return self.fit >= FITS

    @property
    def cost_per_million_tokens(self) -> float | None:
        """In the currency of the price."""
        if self.cost_per_step is None or self.tokens_per_s <= 0:
            return None
        return self.cost_per_step / (self.tokens_per_s * self.step_time_us / 1e6) * 1e6

    def record(self) -> dict[str, Any]:
        """One flat row, as a table or a DataFrame takes it."""
        plain = {k: v for k, v in asdict(self).items() if k not in ("settings", "shares", "chosen")}
        shares = {f"share {name}": value for name, value in self.shares.items()}
        plain["fits"] = self.fits
        return {
            **self.chosen,
            **self.settings,
            **plain,
            "cost_per_million_tokens": self.cost_per_million_tokens,
            **shares,
        }


def frameworks_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """The frameworks that rows assume, each once."""
    return tuple(dict.fromkeys(r.framework for r in rows if r.framework))


def failed(trial: Trial) -> Row:
    """The row of a trial whose worker died twice."""
    return Row(trial.settings, trial.platform, FAILED, reason="its worker died, twice")


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
        self._document = digest(__version__, document, files_read(document, self._folder))
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
