"""Nothing fits: by how much, and which changes make room. Every change that is named was tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepsight.errors import InputError, StepsightError
from stepsight.hardware.spec import PlatformSpec
from stepsight.prediction.memory import fit_probability
from stepsight.tuning.answer import settings_text
from stepsight.tuning.evaluate import with_settings
from stepsight.tuning.search import SURE
from stepsight.tuning.space import Space, space
from stepsight.tuning.trial import Row, Setting
from stepsight.workload.files import parse_workload

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
    reasons = ", ".join(f"{reason} ({n:,} times)" for reason, n in list(found.refused.items())[:3])
    problem = f"no valid configuration: {reasons or 'there is nothing to combine'}"
    if over:
        return InputError("--over", problem, "widen the space")
    gpus, batch = max(counts), found.document.get("global_batch")
    where = f"{gpus} GPU" + ("s" if gpus > 1 else "")
    if not isinstance(batch, int) or batch < 1:
        return InputError(where, problem, "ask for another number with --gpus")
    fewer = max(n for n in range(1, gpus + 1) if batch % n == 0)
    return InputError(
        where,
        f"{problem}; the global batch is {batch}",
        f"ask for --gpus {fewer}, or a --global-batch in multiples of {gpus}",
    )


def nothing_fits(rows: Sequence[Row], found: Space, spec: PlatformSpec | None) -> str:
    """What to say where no configuration is sure enough to fit; a captured step has no one platform."""
    least = min(rows, key=lambda r: r.memory_gb)
    over = least.memory_gb - least.usable_gb
    amount = f"{over:.1f} GB too much" if over > 0 else "too close to the limit to be sure"
    words = (
        f"nothing fits: the smallest ({settings_text(least.settings)}) needs {least.memory_gb:.1f} GB of "
        f"{least.usable_gb:.1f} GB usable, {amount}"
    )
    if spec is None:
        return f"{words}; name platforms with more memory, --over platform=A,B"
    helps = list(_alone(least, found, spec)) or [_together(least, found, spec)]
    return f"{words}; this would: {', or '.join(helps)}"


def _alone(least: Row, found: Space, spec: PlatformSpec) -> Iterator[str]:
    """One change of the smallest configuration that makes it fit, for each field that has one."""
    if found.document.get("kind") == "dlrm":
        return
    for path, values in ALONE:
        for value in values:
            memory_gb = _fitting_gb(found.document, {**least.settings, path: value}, spec)
            if memory_gb and not _illegal(least, path, value):
                yield f"{settings_text({path: value})} ({memory_gb:.0f} GB)"
                break


def _illegal(least: Row, path: str, value: Setting) -> bool:
    pipeline = least.settings.get("parallel.pipeline", 1)
    return path == "parallel.zero" and value in (2, 3) and pipeline != 1


def _together(least: Row, found: Space, spec: PlatformSpec) -> str:
    """The fewest GPUs on which something fits, twice as many at a time, with all that saves memory."""
    document, gpus = found.document, max(1, least.ranks)
    while gpus <= MOST_GPUS:
        for settings in _lean(document, gpus, spec.gpus_per_node):
            memory_gb = _fitting_gb(document, settings, spec)
            if memory_gb:
                where = "these GPUs" if gpus == least.ranks else f"{gpus:,} GPUs"
                layout = settings_text({k: v for k, v in settings.items() if k != "parallel.ranks"})
                return f"{where}{f' with {layout}' if layout else ''} ({memory_gb:.0f} GB)"
        gpus *= 2
    if document.get("kind") == "dlrm":
        return "tables cut in parts or in half precision (stepsight shard), or GPUs with more memory"
    return f"nothing that was tried on up to {MOST_GPUS:,} GPUs; take GPUs with more memory"


def _lean(document: Mapping[str, Any], gpus: int, per_node: int) -> tuple[dict[str, Setting], ...]:
    """Configurations on this many GPUs that need little memory, the least split first."""
    if document.get("kind") == "dlrm":
        return ({"parallel.ranks": gpus},)
    try:
        found = space(document, gpus=[gpus], per_node=per_node, over=LEAN).candidates
    except StepsightError:
        return ()
    return tuple(sorted(found, key=lambda s: (_int(s, "tensor") * _int(s, "pipeline"), -_int(s, "zero"))))


def _int(settings: Mapping[str, Setting], name: str) -> int:
    value = settings.get(f"parallel.{name}", 1)
    return int(value) if isinstance(value, (int, float)) else 1


def _fitting_gb(document: Mapping[str, Any], settings: Mapping[str, Setting], spec: PlatformSpec) -> float:
    """What the fullest rank needs where that is sure enough to fit; else zero."""
    try:
        workload = parse_workload(with_settings(document, settings, "tune"), "tune")
        peak = workload.memory().peak_bytes
    except StepsightError:
        return 0.0
    return peak / 1e9 if fit_probability(peak, spec.gpu.usable_bytes) >= SURE else 0.0
