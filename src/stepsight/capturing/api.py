"""``stepsight.capture``: a training script → its step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from stepsight.capturing.ranks import Capturing
from stepsight.capturing.request import Assumptions, request
from stepsight.capturing.step import CapturedStep
from stepsight.errors import InputError
from stepsight.platform.load import Platform, load_platform


def capture(
    script: str | Path, platform: str | Path | Platform, *, arguments: Sequence[str] = (),
    world: int | None = None, module: bool = False, warmup: int = 2, steps: int = 1,
    assume: Sequence[str] = (), batch: int | None = None, ranks: Sequence[int] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> CapturedStep:  # fmt: skip
    """Run a training script (a file, or a module) without a GPU and return its step.

    ``world``: ranks of the job, all GPUs of the platform by default; ``ranks``: those to capture, found by
    themselves by default. ``steps`` optimizer steps are recorded after ``warmup`` others. ``assume`` holds
    ``name=value``. ``batch``: samples per step of the whole job, read off the model's input by default.
    """
    path = Path(script)
    if not module and not path.is_file():
        problem = "is a folder" if path.is_dir() else "there is no such file"
        raise InputError(str(script), problem, "name the training script, or use -m for a module")
    Assumptions.read(assume)
    chosen = platform if isinstance(platform, Platform) else load_platform(platform)
    size = world or chosen.spec.ranks
    chosen.with_ranks(size, "--world")
    _whole_nodes(size, chosen.spec.gpus_per_node)
    if ranks is not None and (not ranks or min(ranks) < 0 or max(ranks) >= size):
        listed = ",".join(map(str, ranks))
        raise InputError(f"--ranks {listed}", f"ranks go from 0 to {size - 1}", "leave the others out")
    asked = request(
        chosen.spec.gpu, str(script), arguments, world=size, per_node=chosen.spec.gpus_per_node,
        module=module, warmup=warmup, steps=steps, assume=assume,
    )  # fmt: skip
    return Capturing(asked, progress, batch=batch or 0).step(path.name, ranks)


def _whole_nodes(world: int, per_node: int) -> None:
    if world > per_node and world % per_node:
        raise InputError(
            f"--world {world}", f"is not a multiple of {per_node}, the GPUs of a node",
            f"use {world // per_node * per_node} or {-(-world // per_node) * per_node}",
        )  # fmt: skip
