"""``python -m lab score advise``: single changes that published runs show before and after.

Two runs of a source that differ in one setting are a pair: recomputation, attention kernel, ZeRO stage. Both
are predicted as a user asks them; the predicted change of the step is held against the measured one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import numpy as np

from lab.datasets.captured_steps import MeasuredStep, read_steps
from lab.datasets.folder import data_folder
from lab.datasets.llm.case import Case
from lab.datasets.llm.files import all_cases
from lab.score.capture.steps import kept
from lab.score.capture.topic import KEPT
from lab.score.frame import show
from stepsight.capturing.step import load_step
from stepsight.errors import StepsightError
from stepsight.platform.load import load_platform
from stepsight.prediction.changes import rewrites_of
from stepsight.prediction.learn.response import ask
from stepsight.prediction.predict import predict_captured
from stepsight.score import CHOSEN, Figure, Score
from stepsight.workload.files import parse_workload

TOPIC = "advise"
TIMM, CHANNELS_LAST = "timm_train_rtx3090", "channels_last"
SETTINGS = {
    "recomputation": ("training.recompute", "training.recompute_modules", "training.recompute_layers"),
    "attention kernel": ("training.attention",),
    "ZeRO stage": ("parallel.zero",),
    "sequence parallelism": ("parallel.sequence_parallel",),
}
"""Fields of a workload that may differ in a pair of each kind."""
NOISE, BAR, FEWEST = 0.02, 0.8, 5
"""Changes that were measured to be smaller have no sign; ``BAR`` is the share of the others whose sign is to
be right."""


@dataclass(frozen=True, slots=True)
class Pair:
    """ln(step after / step before), measured and predicted."""

    kind: str
    source: str
    before: str
    after: str
    measured: float
    predicted: float


def layout_pairs(data: Path, keep: Path) -> Iterator[Pair]:
    """Image models whose planes and pixels were both measured: the captured step of planes (those that are
    kept) is rewritten as advise does. Steps count by image, since batches may differ."""
    both: dict[tuple[str, ...], dict[bool, MeasuredStep]] = {}
    for row in read_steps(data, (TIMM,)):
        asked = {k: v for k, v in row.asked.items() if k not in ("channels_last", "batch", "params_m")}
        key = (row.platform, row.torch, *sorted(map(repr, asked.items())))
        both.setdefault(key, {})[bool(row.asked["channels_last"])] = row
    for found in both.values():
        if len(found) == 2 and kept(found[False], keep).is_file():
            before, after = found[False], found[True]
            step = replace(load_step(kept(before, keep)), torch=before.torch)
            on = load_platform(before.platform)
            made = next((r.step for r in rewrites_of(step, on.spec.gpu) if r.name == CHANNELS_LAST), step)
            predicted = predict_captured(made, on).step_time_us / predict_captured(step, on).step_time_us
            measured = after.step_ms / after.batch / (before.step_ms / before.batch)
            kind = "NHWC against NCHW"
            yield Pair(kind, TIMM, before.name, after.name, math.log(measured), math.log(predicted))


def pairs(data: Path) -> Iterator[Pair]:
    """Every pair of runs that differ in one setting."""
    for _, cases in all_cases(data):
        able = [c for c in cases if c.asked is not None and c.measured_ms and not c.slow]
        steps: dict[int, float | None] = {}
        for kind, fields in SETTINGS.items():
            groups: dict[tuple[Any, ...], list[tuple[Case, Any]]] = {}
            for case in able:
                flat = dict(_flat(case.asked or {}))
                value = tuple(flat.pop(name, None) for name in fields)
                flat.pop("name", None)
                rest = sorted((k, repr(v)) for k, v in flat.items())
                key = (case.platform, case.overrides, case.group, *rest)
                groups.setdefault(key, []).append((case, value))
            for members in groups.values():
                for (a, before), (b, after) in combinations(members, 2):
                    if before != after:
                        yield from _pair(kind, a, b, steps)


def _pair(kind: str, a: Case, b: Case, steps: dict[int, float | None]) -> Iterator[Pair]:
    for case in (a, b):
        if id(case) not in steps:
            steps[id(case)] = _step_us(case)
    before, after = steps[id(a)], steps[id(b)]
    if before and after and a.measured_ms and b.measured_ms:
        measured = math.log(b.measured_ms / a.measured_ms)
        yield Pair(kind, a.source, a.name, b.name, measured, math.log(after / before))


def _step_us(case: Case) -> float | None:
    try:
        workload = parse_workload(case.asked or {}, case.name)
        return ask(workload, load_platform(case.platform, case.overrides)).step_us
    except StepsightError:
        return None


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def by_kind(found: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Pairs by kind of change and source."""
    kinds: dict[str, list[Pair]] = {}
    for pair in found:
        kinds.setdefault(f"{pair.kind}, {pair.source}", []).append(pair)
    return kinds


def sign_right(found: Sequence[Pair]) -> tuple[int, int]:
    """Changes beyond noise whose sign is right, and how many there are."""
    clear = [p for p in found if abs(p.measured) > NOISE]
    return sum(p.measured * p.predicted > 0 for p in clear), len(clear)


def scores(data: Path) -> list[Score]:
    """The lines of the scoreboard."""
    found = [*pairs(data), *layout_pairs(data, KEPT)]
    return [line(name, members) for name, members in by_kind(found).items()]


def line(name: str, found: Sequence[Pair]) -> Score:
    """A kind of change: how often its sign is right, and how far its size is off."""
    right, clear = sign_right(found)
    size = float(np.mean([abs(p.measured - p.predicted) for p in found]))
    share = right / clear if clear else 1.0
    return Score(
        TOPIC, name, len(found), size, size, "pairs of runs that differ in one setting",
        f"sign right in {BAR:.0%}", share >= BAR if clear >= FEWEST else None,
        f"measured change {np.mean([abs(p.measured) for p in found]):.1%} on average",
        exposure=CHOSEN, figure=Figure("sign right", share, "more"),
    )  # fmt: skip


@click.command(TOPIC, help="Single changes that published runs show before and after.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option(
    "--steps", type=click.Path(path_type=Path), default=KEPT, show_default=True, help="Kept captured steps."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: Path | None, steps: Path, as_json: bool) -> None:
    folder = data_folder(data)
    kinds = by_kind([*pairs(folder), *layout_pairs(folder, steps)])
    document = {}
    for name, members in kinds.items():
        right, clear = sign_right(members)
        document[name] = {
            "pairs": len(members), "clear": clear, "sign_right": right,
            "mean_error": float(np.mean([abs(p.measured - p.predicted) for p in members])),
            "mean_change": float(np.mean([abs(p.measured) for p in members])),
            "each": [asdict(pair) for pair in members],
        }  # fmt: skip
    show([line(name, members) for name, members in kinds.items()], document, as_json=as_json)
