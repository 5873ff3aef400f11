"""``--model`` and ``--set``, the same in every command that predicts."""

from __future__ import annotations

from collections.abc import Sequence

from stepsight.errors import InputError

PLATFORM_PREFIX = "platform."
MODEL_HELP = "A well-known model by name, such as llama3-8b: the same as naming it in place of a file."
SET_HELP = "Change a field of the workload, or of the platform (platform.link.gbps=100: GB/s per GPU)."
RECIPE_HELP = "The training stack whose defaults apply: a name of `stepsight recipes`, or a file of your own."
MODELS_ONLY_HELP = "With --trace: use model times for every kernel of known size, ignoring measured ones."
PLATFORM_SET_HELP = "Change a field of the platform (platform.link.gbps=100: GB/s per GPU)."


def split_assignments(assignments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Assignments to the workload, and those to the platform without their prefix."""
    on_platform = [a.removeprefix(PLATFORM_PREFIX) for a in assignments if a.startswith(PLATFORM_PREFIX)]
    return [a for a in assignments if not a.startswith(PLATFORM_PREFIX)], on_platform


def platform_assignments(assignments: Sequence[str], source: str, fix: str) -> list[str]:
    """Assignments to the platform, where the workload has no fields: a trace, a script, a captured step."""
    on_workload, on_platform = split_assignments(assignments)
    if on_workload:
        key = on_workload[0].partition("=")[0]
        raise InputError(
            f"--set {on_workload[0]}", f"{source} has no fields",
            f"{fix}; for a field of the platform write {PLATFORM_PREFIX}{key}",
        )  # fmt: skip
    return on_platform


def captured_assignments(assignments: Sequence[str]) -> list[str]:
    """Assignments to the platform of a captured step."""
    return platform_assignments(assignments, "a captured step", "capture it again")
