"""Published steps captured again and predicted: time, memory, and which batch fits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from lab.datasets.captured_steps import MeasuredStep
from lab.score.capture.forks import Wanted, captured
from stepsight.capturing.request import Request, request
from stepsight.capturing.step import CapturedStep, RankMemoryUse, load_step, save_step
from stepsight.errors import StepsightError
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.predict import predict_captured
from stepsight.workload.memory import CONTEXT_BYTES

OTHER_MODEL = ("Unknown model", "parameters, the row")
"""What the script says where the library has no such model today, or another one under this name."""
FIXED = ("parameters", "gradients", "optimizer_state", "other_persistent")
"""Parts of a step's memory that a larger batch does not change."""


@dataclass(frozen=True, slots=True)
class ScoredStep:
    """A measured step and what was predicted for it. ``problem`` says why there is no prediction;
    ``other_model`` that the row's model cannot be built. ``fits`` and ``larger_fits`` are predicted."""

    row: MeasuredStep
    predicted_ms: float = 0.0
    low_ms: float = 0.0
    high_ms: float = 0.0
    active_bytes: float = 0.0
    reserved_bytes: float = 0.0
    fits: bool = True
    larger_fits: bool = False
    problem: str = ""

    @property
    def other_model(self) -> bool:
        return any(text in self.problem for text in OTHER_MODEL)

    @property
    def inside(self) -> bool:
        return self.low_ms <= self.row.step_ms <= self.high_ms


def scored(
    rows: Sequence[MeasuredStep], keep: Path, configs: Path | None, progress: Callable[[str], None]
) -> Iterator[ScoredStep]:
    """Every row. Steps are kept in ``keep``, and those that are there are not captured again."""
    lost: dict[str, str] = {}
    wanted: dict[str, Wanted] = {}
    for row in rows:
        key = _key(row)
        if key in wanted or key in lost or kept(row, keep).is_file():
            continue
        try:
            wanted[key] = Wanted(key, row.name, _request(row, configs))
        except StepsightError as error:
            lost[key] = str(error)
    libraries = dict.fromkeys(name for row in rows for name in row.libraries)
    keep.mkdir(parents=True, exist_ok=True)
    made = captured(list(wanted.values()), tuple(libraries)) if wanted else ()
    for number, outcome in enumerate(made, start=1):
        progress(f"{number} of {len(wanted)}  {wanted[outcome.key].name}  {outcome.problem}".rstrip())
        if outcome.step is None:
            lost[outcome.key] = outcome.problem
        else:
            save_step(outcome.step, keep / f"{outcome.key}.json")
    for row in rows:
        key = _key(row)
        if key in lost:
            yield ScoredStep(row, problem=lost[key])
        else:
            try:
                yield _predicted(row, load_step(kept(row, keep)))
            except StepsightError as error:
                yield ScoredStep(row, problem=str(error))


def kept(row: MeasuredStep, keep: Path) -> Path:
    """Where the row's captured step is kept."""
    return keep / f"{_key(row)}.json"


def _key(row: MeasuredStep) -> str:
    """Rows that run the same on the same GPU share a captured step."""
    text = msgspec.json.encode([row.script, sorted(row.asked.items()), row.platform])
    return f"{row.file}-{hashlib.sha1(text).hexdigest()[:16]}"


def _request(row: MeasuredStep, configs: Path | None) -> Request:
    asked = dict(row.asked)
    if configs is not None and row.file == "models_h100":
        asked = {**asked, "configs": str(configs.resolve())}
    arguments = [msgspec.json.encode(asked).decode()]
    spec = _platform(row.platform).spec
    return request(
        spec.gpu, row.script, arguments, world=row.ranks, per_node=spec.gpus_per_node, module=True,
        warmup=row.warmup, steps=row.steps, assume=[f"torch={row.torch}"] if row.torch else (),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _platform(name: str) -> Platform:
    return load_platform(name)


def _predicted(row: MeasuredStep, step: CapturedStep) -> ScoredStep:
    platform = _platform(row.platform)
    made, use = predict_captured(step, platform), step.fullest
    if use is None:
        return ScoredStep(row, made.step_time_us / 1e3, made.low_us / 1e3, made.high_us / 1e3)
    usable = platform.spec.gpu.usable_bytes - CONTEXT_BYTES
    scale = row.larger_batch / row.batch if row.larger_batch else 1.0
    return ScoredStep(
        row, made.step_time_us / 1e3, made.low_us / 1e3, made.high_us / 1e3, use.peak_active_bytes,
        use.peak_reserved_bytes, fits=bool(made.memory and made.memory.fits),
        larger_fits=_at_batch(use, scale) <= usable,
    )  # fmt: skip


def _at_batch(use: RankMemoryUse, scale: float) -> float:
    """Active memory at another batch: all but parameters, their gradients and states grows with it."""
    fixed = sum(use.parts_bytes.get(name, 0) for name in FIXED)
    return fixed + (use.peak_active_bytes - fixed) * scale
