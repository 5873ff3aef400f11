"""Scripts of examples/capture that write measured jobs down again, and how they are captured for a score."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepsight.capture.ranks import Capturing
from stepsight.capture.request import request
from stepsight.capture.step.captured import CapturedStep, load_step, save_step
from stepsight.errors import InputError
from stepsight.platform.load import Platform

EXAMPLES = Path(__file__).parents[3] / "examples" / "capture"
"""They are part of the repository, not of the package."""


def captured(
    script: str, arguments: Sequence[str], platform: Platform, world: int, keep: Path | None = None
) -> CapturedStep:
    """One rank's step (all ranks of these jobs do the same); kept in ``keep`` and taken from there."""
    path = EXAMPLES / script
    if not path.is_file():
        raise InputError(str(path), "the scripts of the repository are needed", "run it from a checkout")
    name = "-".join([path.stem, platform.name, str(world), *(a.removeprefix("--") for a in arguments)])
    kept = keep / f"{name}.json" if keep else None
    if kept is not None and kept.is_file():
        return load_step(kept)
    step = Capturing(request(platform.spec, str(path), arguments, world=world)).step(script, [0])
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_step(step, kept)
    return step
