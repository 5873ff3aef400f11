"""Nothing fits: by how much, and which changes make room. Every change that is named was tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepsight.errors import InputError, StepsightError
from stepsight.platform.load import Platform
from stepsight.prediction.memory import fit_probability
from stepsight.terminal import counted
from stepsight.tuning.answer import settings_text
from stepsight.tuning.dimensions import LANGUAGE, Model, default_dimensions
from stepsight.tuning.evaluate import peak_bytes
from stepsight.tuning.search import SURE
from stepsight.tuning.space import Space, space
from stepsight.tuning.trial import Row, Setting

MOST_GPUS = 4096
"""This many are tried at most."""
LEAN: dict[str, list[Setting] | None] = {
    "parallel.tensor": None, "parallel.pipeline": None, "parallel.zero": None, "parallel.micro_batch": [1],
    "training.recompute": ["full"],
}  # fmt: skip
"""The part of a language model's space that needs the least memory."""
ALONE: tuple[tuple[str, tuple[Setting, ...]], ...] = (
    ("training.recompute", ("selective", "full")), ("parallel.zero", (1, 2, 3)),
    ("parallel.micro_batch", (1,)),
)  # fmt: skip
"""Single changes that are tried, gentlest first."""


def no_candidates(found: Space, counts: Sequence[int], *, over: bool) -> InputError:
    """What to say if no combination is valid: of values that were asked for, or on this many GPUs."""
    reasons = ", ".join(f"{reason} ({counted(n, 'time')})" for reason, n in list(found.refused.items())[:3])
    problem = f"no valid configuration: {reasons or 'there is nothing to combine'}"
    if over:
        return InputError("--over", problem, "widen the space")
    gpus, batch = max(counts), found.document.get("global_batch")
    where = counted(gpus, "GPU")
    if not isinstance(batch, int) or batch < 1:
        return InputError(where, problem, "ask for another number with --gpus")
    fewer = max(n for n in range(1, gpus + 1) if batch % n == 0)
    return InputError(
        where,
        f"{problem}; the global batch is {batch}",
        f"ask for --gpus {fewer}, or a --global-batch in multiples of {gpus}",
    )


def nothing_fits(least: Row) -> str:
    """By how much the smallest configuration does not fit."""
    over = least.memory_gb - least.usable_gb
    amount = f"{over:.1f} GB too much" if over > 0 else "too close to the limit to be sure"
    return (
        f"nothing fits: the smallest ({settings_text(least.settings)}) needs {least.memory_gb:.1f} GB of "
        f"{least.usable_gb:.1f} GB usable, {amount}"
    )


def what_would_fit(
    least: Row, given: Mapping[str, Any], found: Space, platform: Platform, global_batch: int | None
) -> str:
    """Changes of the smallest configuration, else more GPUs. ``given`` is the workload as it was described:
    a batch that it leaves open grows with the GPUs."""
    helps = list(_alone(least, found, platform))
    return f"this would: {', or '.join(helps) or _together(least, given, platform, global_batch)}"


def _alone(least: Row, found: Space, platform: Platform) -> Iterator[str]:
    """One change of the smallest configuration that makes it fit, for each field that has one."""
    if found.document.get("kind") == "dlrm":
        return
    for path, values in ALONE:
        for value in values:
            memory_gb = _fitting_gb(found.document, {**least.settings, path: value}, platform)
            if memory_gb and not _illegal(least, path, value):
                yield f"{settings_text({path: value})} ({memory_gb:.0f} GB)"
                break


def _illegal(least: Row, path: str, value: Setting) -> bool:
    pipeline = least.settings.get("parallel.pipeline", 1)
    return path == "parallel.zero" and value in (2, 3) and pipeline != 1


def _together(least: Row, given: Mapping[str, Any], platform: Platform, global_batch: int | None) -> str:
    """The fewest GPUs on which something fits, twice as many at a time, with all that saves memory; with one
    sequence per GPU where the batch is too small to be shared out."""
    if given.get("kind") == "dlrm":
        for gpus in _doubled(least.ranks):
            if memory_gb := _fitting_gb(given, {"parallel.ranks": gpus}, platform):
                return f"{_where(gpus, least)} ({memory_gb:.0f} GB)"
        return "tables cut in parts or in half precision (stepsight shard), or GPUs with more memory"
    for larger_batch in (False, True):
        for gpus in _doubled(least.ranks):
            batch = gpus if larger_batch else global_batch
            for document, settings in _lean(given, gpus, platform.spec.gpus_per_node, batch):
                if memory_gb := _fitting_gb(document, settings, platform):
                    more = f" and --global-batch {batch}" if larger_batch else ""
                    words = f"{_where(gpus, least)}{more} with {settings_text(settings)}"
                    return f"{words} ({memory_gb:.0f} GB)"
    return f"nothing that was tried on up to {MOST_GPUS:,} GPUs; take GPUs with more memory"


def _doubled(gpus: int) -> Iterator[int]:
    gpus = max(1, gpus)
    while gpus <= MOST_GPUS:
        yield gpus
        gpus *= 2


def _where(gpus: int, least: Row) -> str:
    return "these GPUs" if gpus == least.ranks else f"{gpus:,} GPUs"


def _lean(
    given: Mapping[str, Any], gpus: int, per_node: int, batch: int | None
) -> Iterator[tuple[Mapping[str, Any], dict[str, Setting]]]:
    """Configurations on this many GPUs that need little memory, the least split first."""
    more = set(default_dimensions(Model(given, [gpus], per_node, 0))) - set(LANGUAGE)
    try:
        found = space(
            given, gpus=[gpus], per_node=per_node, global_batch=batch, over={**LEAN, **dict.fromkeys(more)}
        )
    except StepsightError:
        return
    for settings in sorted(found.candidates, key=_splits):
        yield found.document, settings


def _splits(settings: Mapping[str, Setting]) -> tuple[int, int, int]:
    """How much a layout splits: layers and operators, then sequences and experts, and ZeRO's stage."""

    def of(name: str) -> int:
        value = settings.get(f"parallel.{name}", 1)
        return int(value) if isinstance(value, (int, float)) else 1

    return of("tensor") * of("pipeline"), of("context") * of("expert"), -of("zero")


def _fitting_gb(document: Mapping[str, Any], settings: Mapping[str, Setting], platform: Platform) -> float:
    """What the fullest rank needs where that is sure enough to fit; else zero."""
    peak = peak_bytes(document, settings, "tune", platform)
    sure = peak is not None and fit_probability(peak, platform.spec.gpu.usable_bytes) >= SURE
    return peak / 1e9 if sure and peak is not None else 0.0
