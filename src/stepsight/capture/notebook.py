"""Capture from inside Python: ``with stepsight.capture(world=8) as c:``, for notebooks and tests.

The block runs as rank 0 of ``world`` and is left as soon as a step has been recorded. torch stays on the
fake GPU for the rest of the process.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from stepsight.capture.assumptions import Assumptions
from stepsight.capture.step.captured import CapturedStep, RankMemoryUse
from stepsight.capture.target import capability, l2_bytes, memory_bytes
from stepsight.errors import StepsightError
from stepsight.hardware.gpus import load_gpu

_sessions: list[Any] = []
"""A process has one fake GPU."""


class Capture:
    """Holds ``step`` after its block; hand it to `stepsight.predict` with a platform."""

    def __init__(
        self, world: int = 1, gpu: str = "H100-SXM-80G", *, per_node: int = 8, warmup: int = 2,
        steps: int = 1, assume: dict[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.world, self.per_node, self.warmup, self.steps = world, per_node, warmup, steps
        self.gpu = load_gpu(gpu)
        self.assumptions = Assumptions.read(f"{name}={value}" for name, value in (assume or {}).items())
        self._step: CapturedStep | None = None

    @property
    def step(self) -> CapturedStep:
        if self._step is None:
            raise StepsightError(
                "no step was captured: the block must take more optimizer steps than warm-up"
            )
        return self._step

    def __enter__(self) -> Capture:
        from stepsight.capture.gpu.device import FakeGpu
        from stepsight.capture.session import Session, Settings

        if _sessions:
            raise StepsightError("this process has captured before; start a new one for another capture")
        fake = FakeGpu(
            self.gpu.name, capability(self.gpu), memory_bytes(self.gpu), self.gpu.sms, l2_bytes(self.gpu),
            min(self.per_node, self.world),
        )  # fmt: skip
        settings = Settings(fake, 0, self.world, self.per_node, self.warmup, self.steps, self.assumptions)
        self.session = Session(settings)
        _sessions.append(self.session)
        self.session.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        from stepsight.capture.recording.steps import StepsRecordedError

        self.session.__exit__(kind, error, trace)
        if self.session.captured is not None:
            self._step = self._assembled(self.session.captured)
        return isinstance(error, StepsRecordedError)

    def _assembled(self, captured: Any) -> CapturedStep:
        from stepsight.capture.step.families import families, groups_of
        from stepsight.capture.step.fusing.regions import compiled_step
        from stepsight.capture.step.lowering import Lowering
        from stepsight.capture.step.program import ProgramBuilder
        from stepsight.program.job import Job

        found = families(captured.groups, self.world)
        lowering = Lowering(captured.precision, self.assumptions)
        builder = ProgramBuilder(0, self.world, found, lowering)
        step, compile_notes = compiled_step(captured, lowering)
        program = builder.build(step)
        use = captured.memory
        memory = RankMemoryUse(
            0, use.peak_active_bytes, use.peak_reserved_bytes, use.parts_bytes, use.peak_operator
        )
        notes = [*captured.notes, *compile_notes]
        if self.world > 1:
            notes.append(f"rank 0 alone was captured; all {self.world} ranks are taken to do the same")
        job = Job((program,), (0,) * self.world, groups_of(found, self.world))
        return CapturedStep(
            "captured block", self.gpu.name, job, (memory,), self.steps, dict(builder.guessed),
            captured.assumed, tuple(notes),
        )  # fmt: skip
