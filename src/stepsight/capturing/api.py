"""``stepsight.capture``: a training script, or a block of Python, → its step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stepsight.capturing.ranks import Capturing
from stepsight.capturing.request import Assumptions, request
from stepsight.capturing.step import CapturedStep
from stepsight.errors import InputError, StepsightError
from stepsight.hardware.gpus import load_gpu
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
    chosen.with_ranks(size)
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


_captured: list[str] = []
"""What this process has captured: it has one fake GPU."""


class CapturedBlock:
    """Holds ``step`` after its block; hand it to `stepsight.predict` with a platform."""

    def __init__(self) -> None:
        self.found: CapturedStep | None = None

    @property
    def step(self) -> CapturedStep:
        if self.found is None:
            raise StepsightError(
                "no step was captured: the block must take more optimizer steps than warm-up"
            )
        return self.found


@contextmanager
def capture_block(
    world: int = 1, gpu: str = "H100-SXM-80G", *, per_node: int = 8, warmup: int = 2, steps: int = 1,
    assume: Mapping[str, float] | None = None,
) -> Iterator[CapturedBlock]:  # fmt: skip
    """A context whose block is captured as rank 0 of ``world`` ranks on this GPU."""
    assumed = [f"{name}={value}" for name, value in (assume or {}).items()]
    asked = request(
        load_gpu(gpu), "captured block", world=world, per_node=per_node, warmup=warmup, steps=steps,
        assume=assumed,
    )  # fmt: skip
    from stepsight.capturing.boundaries import StepsRecordedError
    from stepsight.capturing.session import Session

    if _captured:
        raise StepsightError("this process has captured before; start a new one for another capture")
    session, block = Session(asked), CapturedBlock()
    _captured.append(asked.script)
    try:
        with session, suppress(StepsRecordedError):
            yield block
    finally:
        if session.captured is not None:
            block.found = Capturing(asked, answers={0: session.captured}).step(asked.script, [0])
