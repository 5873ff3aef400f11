"""A captured step that no script made."""

from __future__ import annotations

from stepsight.capturing.step import CapturedStep, RankMemoryUse
from stepsight.program.job import Job, Kernel, Op, RankProgram


def step() -> CapturedStep:
    kernel = Kernel.of("gemm", "fp16", batch=1, m=512, n=512, k=512)
    wide = Kernel.of("gemm", "fp16", batch=1, m=512, n=512, k=256)
    program = RankProgram((Op("aten::linear", (kernel,)), Op("aten::mm", (wide,))), "rank 0")
    memory = RankMemoryUse(0, 1e9, 2e9, {"parameters": 1e9})
    return CapturedStep("tiny", "H100-SXM-80G", Job.replicated(program, 1), (memory,))
