"""Rows of models_h100.csv: a library's model, trained on one GPU; captured and predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stepsight.capture.ranks import Capturing
from stepsight.capture.step.captured import CapturedStep
from stepsight.capture.step.file import load_step, save_step
from stepsight.capture.target import request
from stepsight.errors import InputError, ScriptFailedError, StepsightError
from stepsight.inputs import csv_records, finite, read_text, whole
from stepsight.platform.load import Platform
from stepsight.prediction.captured import predict_captured

FILE = "models_h100.csv"
PLATFORM = "1xH100-SXM"
SCRIPT = "stepsight.run.library.step"
PRECISIONS = ("FP", "MP", "HP")
COLUMNS = (
    "model", "batch", "seq", "image", "precision", "activation_checkpointing", "step_ms", "peak_active_bytes",
    "peak_reserved_bytes",
)  # fmt: skip
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is trained; rows that measured it twice share one."""

    model: str
    batch: int
    sequence: int
    image: int
    precision: str
    checkpointing: bool

    @property
    def name(self) -> str:
        sizes = [f"batch {self.batch}"]
        sizes += [f"sequence {self.sequence}"] if self.sequence > 0 else []
        sizes += [f"image {self.image}"] if self.image > 0 else []
        return f"{self.model} {', '.join(sizes)}, {self.precision}" + (", AC" if self.checkpointing else "")

    def file(self) -> str:
        recomputed = "-ac" if self.checkpointing else ""
        sizes = f"{self.batch}-{self.sequence}-{self.image}"
        return f"{self.model}-{sizes}-{self.precision}{recomputed}.json".replace("/", "_")


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    configuration: Configuration
    step_ms: float
    active_bytes: float
    reserved_bytes: float


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A measured row beside what was predicted for it."""

    name: str
    model: str
    measured_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float
    measured_active_bytes: float
    predicted_active_bytes: float
    measured_reserved_bytes: float
    predicted_reserved_bytes: float

    @property
    def inside(self) -> bool:
        return self.low_ms <= self.measured_ms <= self.high_ms


def read(path: Path) -> list[MeasuredRow]:
    """The rows of a file with these columns; a bad one is named."""
    rows = []
    for line, row in csv_records(read_text(path), str(path), COLUMNS):
        where = f"{path.name} line {line}"
        if row["precision"] not in PRECISIONS:
            raise InputError(
                f"{where}: precision", f"is {row['precision']!r}", f"one of {', '.join(PRECISIONS)}"
            )
        if row["activation_checkpointing"] not in ("True", "False"):
            raise InputError(f"{where}: activation_checkpointing", "is not True or False")
        sizes = {n: whole(row[n], f"{where}: {n}", least=-1) for n in ("batch", "seq", "image")}
        configuration = Configuration(
            row["model"], sizes["batch"], sizes["seq"], sizes["image"], row["precision"],
            row["activation_checkpointing"] == "True",
        )  # fmt: skip
        measured = [finite(row[n], f"{where}: {n}") for n in COLUMNS[-3:]]
        rows.append(MeasuredRow(configuration, *measured))
    return rows


@dataclass(frozen=True, slots=True)
class Captures:
    """Captures configurations; steps are kept in ``folder`` and read back from there where they are."""

    platform: Platform
    folder: Path | None = None
    configs: Path | None = None
    say: Say = lambda text: None

    def step(self, one: Configuration) -> CapturedStep:
        kept = self.folder / one.file() if self.folder else None
        if kept is not None and kept.is_file():
            return load_step(kept)
        asked = {
            "model": one.model, "batch": one.batch, "sequence": one.sequence, "image": one.image,
            "precision": one.precision, "checkpointing": one.checkpointing,
            "configs": str(self.configs.resolve()) if self.configs else "",
        }  # fmt: skip
        wanted = request(
            self.platform.spec, SCRIPT, [msgspec.json.encode(asked).decode()], world=1, module=True
        )
        step = Capturing(wanted).step(one.name, [0])
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            save_step(step, kept)
        return step


@dataclass(frozen=True, slots=True)
class Outcome:
    """A configuration's rows, or the reason why it could not be captured."""

    configuration: Configuration
    rows: tuple[ModelRow, ...] = ()
    problem: str = ""


def predicted(rows: Sequence[MeasuredRow], captures: Captures) -> Iterator[Outcome]:
    """Configuration by configuration."""
    by: dict[Configuration, list[MeasuredRow]] = {}
    for row in rows:
        by.setdefault(row.configuration, []).append(row)
    for number, (one, alike) in enumerate(by.items(), start=1):
        captures.say(f"{number} of {len(by)}  {one.name}")
        try:
            step = captures.step(one)
        except ScriptFailedError as error:
            yield Outcome(one, problem=error.problem or str(error))
        except StepsightError as error:
            yield Outcome(one, problem=str(error))
        else:
            yield Outcome(one, tuple(_beside(r, step, captures.platform) for r in alike))


def _beside(row: MeasuredRow, step: CapturedStep, platform: Platform) -> ModelRow:
    made, use = predict_captured(step, platform), step.fullest
    active, reserved = (use.peak_active_bytes, use.peak_reserved_bytes) if use else (0.0, 0.0)
    return ModelRow(
        row.configuration.name, row.configuration.model, row.step_ms, made.step_us / 1e3, made.low_us / 1e3,
        made.high_us / 1e3, row.active_bytes, active, row.reserved_bytes, reserved,
    )  # fmt: skip
