"""``runs.csv``: a user's own measured runs, one row each.

``workload`` (a file, a model's name, a captured step), one measured figure, and any field of the workload or
the platform as a column: ``parallel.tensor``, ``global_batch``, ``platform.nodes``. An empty cell leaves a
field as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from stepsight.capturing.step import CapturedStep
from stepsight.errors import InputError, StepsightError
from stepsight.inputs import csv_records, number, read_text
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.learn.regression import Observed
from stepsight.prediction.learn.response import AskedStep, ask, load_any
from stepsight.prediction.measured import Figure, check_peak, measured_us, parse_figure, share_of_peak
from stepsight.records import closest, nearest
from stepsight.workload.files import Workload, with_recipe
from stepsight.workload.llm.workload import LanguageWorkload

WORKLOAD, NAME, MEMORY = ("workload", "model"), ("name", "run"), "memory_gb"
TIMES = {"step_us": 1.0, "step_ms": 1e3, "step_s": 1e6}
STEP = "step_time"
RATES = (
    "tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s", "samples_per_s_per_gpu", "tflops_per_gpu", "mfu",
)  # fmt: skip
MEASURED = (*TIMES, STEP, *RATES)
PLATFORM = "platform."
LEAST = 1e-9
EXAMPLE = "workload,parallel.tensor,step_ms\nllama3-8b,2,812"


@dataclass(frozen=True, slots=True)
class Run:
    """One row: the job as asked on the platform, what learning needs of it, and measured memory. ``stacks``:
    the same job in other training stacks, where the row leaves that open."""

    asked: AskedStep
    observed: Observed
    measured_bytes: float | None = None
    stacks: Stacks | None = None
    job: Workload | CapturedStep | None = None
    on: Platform | None = None

    @classmethod
    def of(
        cls, name: str, asked: AskedStep, measured_us: float, measured_bytes: float | None = None,
        stacks: Stacks | None = None, job: Workload | CapturedStep | None = None, on: Platform | None = None,
    ) -> Run:  # fmt: skip
        """Ask the job everything that learning needs."""
        observed = Observed.of(asked.response, measured_us, asked.spread, asked.machine, name)
        return cls(asked, observed, measured_bytes, stacks, job, on)

    def asked_in(self, recipe: str) -> AskedStep | None:
        """The job in another stack; as it is where the row names its own, None where the stack has no such
        job."""
        return self.stacks.asked(recipe) if self.stacks and recipe else self.asked

    def of_recipe(self, recipe: str) -> Run:
        """The run in a stack that has such a job."""
        if not self.stacks or not recipe:
            return self
        return self.stacks.run(recipe, self)


@dataclass(frozen=True, slots=True)
class Stacks:
    """A job whose row names no training stack, asked in others when first needed."""

    workload: Workload | CapturedStep
    on: Platform
    _asked: dict[str, AskedStep | None] = field(default_factory=dict)
    _runs: dict[str, Run] = field(default_factory=dict)

    @classmethod
    def of(cls, workload: Workload | CapturedStep, on: Platform) -> Stacks | None:
        """None where the job names its own."""
        named = not isinstance(workload, LanguageWorkload) or workload.unnamed is None
        return None if named else cls(workload, on)

    def asked(self, recipe: str) -> AskedStep | None:
        if recipe not in self._asked:
            changed = with_recipe(self.workload, recipe)
            try:
                unlearned = replace(self.on, evidence=None)
                self._asked[recipe] = None if changed is self.workload else ask(changed, unlearned)
            except StepsightError:
                self._asked[recipe] = None
        return self._asked[recipe]

    def run(self, recipe: str, usual: Run) -> Run:
        if recipe not in self._runs:
            asked = self.asked(recipe) or usual.asked
            one = usual.observed
            self._runs[recipe] = Run.of(one.name, asked, one.measured_us, usual.measured_bytes)
        return self._runs[recipe]


def read_runs(path: str | Path, platform: str | Path, overrides: tuple[str, ...] = ()) -> list[Run]:
    """Every row of the file, priced on the platform; a row that cannot be read names its line."""
    rows = [
        (line, {column.lower(): cell for column, cell in cells.items()})
        for line, cells in csv_records(read_text(path), str(path), ())
    ]
    if not rows:
        raise InputError(str(path), "holds no runs", f"write a row each, such as\n{EXAMPLE}")
    _check_columns(rows[0][1], str(path))

    @cache
    def on(changes: tuple[str, ...]) -> Platform:
        return load_platform(platform, (*overrides, *changes))

    return [_run(cells, Path(path).parent, f"{path}: line {number}", on) for number, cells in rows]


def _check_columns(columns: Iterable[str], where: str) -> None:
    if not any(name in columns for name in WORKLOAD):
        raise InputError(where, "has no column workload", f"for example\n{EXAMPLE}")
    if PLATFORM.rstrip(".") in columns:
        fix = (
            "name it with --platform, one file for each; columns such as platform.link.gbps change its fields"
        )
        raise InputError(where, "has a column platform", fix)
    if not any(name in columns for name in MEASURED):
        near = next((c for c in columns if closest(c, MEASURED)), None)
        fix = nearest(near, MEASURED) if near else f"one of {', '.join(MEASURED)}"
        raise InputError(where, "has no measured column", fix)


def _run(cells: Mapping[str, str], base: Path, where: str, on: Callable[[tuple[str, ...]], Platform]) -> Run:
    named = next((cells[c] for c in WORKLOAD if cells.get(c)), "")
    if not named:
        raise InputError(f"{where}: workload", "is empty", "name a file, a model or a captured step")
    known = {*WORKLOAD, *NAME, *MEASURED, MEMORY}
    fields = {c: v for c, v in cells.items() if c not in known and v}
    changes = tuple(f"{c.removeprefix(PLATFORM)}={v}" for c, v in fields.items() if c.startswith(PLATFORM))
    own = {c: v for c, v in fields.items() if not c.startswith(PLATFORM)}
    try:
        file = base / named
        job, platform = load_any(file if file.exists() else named, own), on(changes)
        step = ask(job, platform)
    except StepsightError as error:
        raise InputError(where, str(error), "correct the row, or leave it out") from None
    label = next((cells[c] for c in NAME if cells.get(c)), "") or _label(named, fields)
    memory = 1e9 * _positive(cells, MEMORY, where) if cells.get(MEMORY) else None
    return Run.of(
        label, step, _measured_us(cells, step, where), memory, Stacks.of(job, platform), job, platform
    )


def _label(named: str, fields: Mapping[str, str]) -> str:
    values = [f"{c.rpartition('.')[2]}={v}" for c, v in fields.items()]
    return " ".join([Path(named).stem, *values])


def _measured_us(cells: Mapping[str, str], step: AskedStep, where: str) -> float:
    """The step time that a row states, or that its rate means for this job."""
    given = [c for c in MEASURED if cells.get(c)]
    if not given:
        raise InputError(where, "has no measured figure", f"fill one of {', '.join(MEASURED)}")
    at = f"{where}: {given[0]}"
    figure = _figure(cells[given[0]], given[0], at)
    us = figure.value
    if figure.kind != "time":
        us = measured_us(figure.kind, us, step.rates, step.step_us, at)
    check_peak(us, step.rates, step.step_us, at, figure.kind)
    return us


def _figure(text: str, column: str, where: str) -> Figure:
    """A plain number in the unit of its column; a time or MFU with a unit of its own."""
    kind = "mfu" if column == "mfu" else "time" if column in (*TIMES, STEP) else ""
    if kind and (column == STEP or text[-1].isalpha() or text[-1] == "%"):
        try:
            figure = parse_figure(text)
        except InputError:
            figure = None
        if figure is None or figure.kind != kind:
            raise InputError(where, f"is {text!r}", "write 33 %" if kind == "mfu" else "write 950 ms")
        return figure
    value = number(text, where, least=LEAST, fix="correct the cell")
    if column in TIMES:
        return Figure("time", value * TIMES[column], text)
    return Figure(column, share_of_peak(value) if column == "mfu" else value, text)


def _positive(cells: Mapping[str, str], column: str, where: str) -> float:
    return number(cells[column], f"{where}: {column}", least=LEAST, fix="correct the cell")
