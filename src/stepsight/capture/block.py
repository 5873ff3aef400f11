"""Capture a block of Python: ``with stepsight.capture_block(world=8) as c:``, for notebooks and tests.

The block runs as rank 0 of ``world`` and is left as soon as a step has been recorded. torch stays on the
fake GPU for the rest of the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from stepsight.capture.ranks import Capturing
from stepsight.capture.request import Request, gpu_request
from stepsight.capture.step.captured import CapturedStep
from stepsight.capture.worker import answer_from, settings_of
from stepsight.errors import StepsightError
from stepsight.hardware.gpus import load_gpu

_sessions: list[Any] = []
"""A process has one fake GPU."""


class CapturedBlock:
    """Holds ``step`` after its block; hand it to `stepsight.predict` with a platform."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.settings = settings_of(self.request)
        self._step: CapturedStep | None = None

    @property
    def step(self) -> CapturedStep:
        if self._step is None:
            raise StepsightError(
                "no step was captured: the block must take more optimizer steps than warm-up"
            )
        return self._step

    def __enter__(self) -> CapturedBlock:
        from stepsight.capture.session import Session

        if _sessions:
            raise StepsightError("this process has captured before; start a new one for another capture")
        self.session = Session(self.settings)
        _sessions.append(self.session)
        self.session.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        from stepsight.capture.recording.steps import StepsRecordedError

        self.session.__exit__(kind, error, trace)
        if self.session.captured is not None:
            answer = answer_from(self.request, self.session)
            self._step = Capturing(self.request, answers={0: answer}).step(self.request.script, [0])
        return isinstance(error, StepsRecordedError)


def capture_block(
    world: int = 1, gpu: str = "H100-SXM-80G", *, per_node: int = 8, warmup: int = 2, steps: int = 1,
    assume: Mapping[str, float] | None = None,
) -> CapturedBlock:  # fmt: skip
    """A context whose block is captured as rank 0 of ``world`` ranks on this GPU."""
    assumed = [f"{name}={value}" for name, value in (assume or {}).items()]
    return CapturedBlock(
        gpu_request(
            load_gpu(gpu), "captured block", world=world, per_node=per_node, warmup=warmup, steps=steps,
            assume=assumed,
        )
    )  # fmt: skip
