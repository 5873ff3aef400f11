"""``python -m lab score power``: language models' steps with and without a generation's power constants.

Without them its draw and voltage are the default, its boards' limits and peaks those of data sheets.

The default was read off Hopper's steps, so that Hopper is not blind by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np

from lab.datasets.folder import data_folder
from lab.datasets.llm.case import Case
from lab.datasets.llm.files import all_cases
from lab.score.frame import show
from lab.score.llm.rows import forget_platforms, outcome, platform_of
from stepsight.errors import StepsightError
from stepsight.platform import power
from stepsight.score import BLIND, FIT, Score, gmae, mape

TABLES = ("PEAK_DRAW", "FP8_ENERGY", "VOLTAGE_FLOOR")
FEWEST = 5
"""Timed rows of a generation that make a line."""


def generations(data: Path, every: int) -> Mapping[str, list[Case]]:
    """Every n-th timed row of each file, by the architecture of its GPUs."""
    found: dict[str, list[Case]] = defaultdict(list)
    for _, cases in all_cases(data):
        timed = [case for case in cases if case.measured_ms and not case.slow and not case.lacks]
        for case in timed[::every]:
            try:
                found[platform_of(case.platform, case.overrides).spec.gpu.architecture].append(case)
            except StepsightError:
                continue
    return found


@contextmanager
def without(architecture: str) -> Iterator[None]:
    """The mechanism as if nobody had run a step on this generation."""
    forget_platforms()
    with ExitStack() as patches:
        for name in TABLES:
            rest = {key: value for key, value in getattr(power, name).items() if key != architecture}
            patches.enter_context(patch.object(power, name, rest))
        yield
    forget_platforms()


def scores(data: Path, every: int = 1) -> list[Score]:
    """Two lines for each generation that has entries of its own: as shipped, and without them."""
    own = {key for name in TABLES for key in getattr(power, name)}
    lines = []
    for name, cases in sorted(generations(data, every).items()):
        if name in own:
            lines.append(_line(f"{name}: as shipped", cases, FIT))
            with without(name):
                lines.append(_line(f"{name}: its entries left out", cases, BLIND))
    return [line for line in lines if line is not None]


def _line(name: str, cases: list[Case], exposure: str) -> Score | None:
    found = [one for one in map(outcome, cases) if one.timed]
    if len(found) < FEWEST:
        return None
    predicted, measured = [one.full.step_ms for one in found], [one.measured_ms for one in found]
    ratio = float(np.median(np.array(predicted) / np.array(measured)))
    return Score(
        "power", name, len(found), gmae(predicted, measured), mape(predicted, measured), "rows with a time",
        "", None, f"median predicted / measured {ratio:.2f}", exposure=exposure,
    )  # fmt: skip


@click.command("power")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--every", type=click.IntRange(min=1), default=1, help="Every n-th row of each file only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: Path | None, every: int, as_json: bool) -> None:
    """Language models' steps with each generation's own entries of the power mechanism, and without."""
    show(scores(data_folder(data), every), {}, as_json=as_json)
