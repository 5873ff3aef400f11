"""Builds tiny profiler traces by hand: every test states its own timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepsight.program.job import Kernel
from stepsight.program.observation import Observation
from stepsight.trace.calls import Calls
from stepsight.trace.files import TraceFile
from stepsight.trace.kineto import read_kineto
from stepsight.trace.link import LinkedTrace, link
from stepsight.trace.run import TraceRun, run_of

MAIN, AUTOGRAD = 1, 2


class Made:
    """A trace under construction. Times in µs; ``device`` names the GPU."""

    def __init__(self, rank: int = 0, world: int = 1, device: str = "Tesla V100-SXM2-16GB") -> None:
        self.events: list[dict[str, Any]] = []
        self.rank, self.world, self.device = rank, world, device
        self.correlation = 100

    def _add(self, cat: str, name: str, ts: float, dur: float, tid: int, pid: int = 7, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def step(self, number: int, ts: float, dur: float) -> None:
        self._add("user_annotation", f"ProfilerStep#{number}", ts, dur, MAIN)

    def annotation(self, name: str, ts: float, dur: float, tid: int = MAIN) -> None:
        self._add("user_annotation", name, ts, dur, tid)

    def op(
        self,
        name: str,
        ts: float,
        dur: float,
        dims: Any = None,
        types: Any = None,
        tid: int = MAIN,
        **args: Any,
    ) -> None:
        if dims is not None:
            args["Input Dims"], args["Input type"] = dims, types or ["float"] * len(dims)
        self._add("cpu_op", name, ts, dur, tid, **args)

    def call(self, name: str, ts: float, dur: float, tid: int = MAIN, **args: Any) -> int:
        self.correlation += 1
        self._add("cuda_runtime", name, ts, dur, tid, correlation=self.correlation, **args)
        return self.correlation

    def launch(
        self, ts: float, dur: float, kernel: str, start: float, length: float, stream: int = 7,
        tid: int = MAIN, call: str = "cudaLaunchKernel", cat: str = "kernel", **args: Any,
    ) -> int:  # fmt: skip
        number = self.call(call, ts, dur, tid)
        self._add(cat, kernel, start, length, stream, 0, stream=stream, correlation=number, device=0, **args)
        return number

    def file(self, name: str = "made.json") -> TraceFile:
        return TraceFile(name, self.content())

    def content(self) -> bytes:
        return json.dumps(
            {
                "schemaVersion": 1,
                "deviceProperties": [{"id": 0, "name": self.device, "totalGlobalMem": 16_000_000_000}],
                "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world},
                "traceEvents": self.events,
            }
        ).encode()

    def linked(self) -> LinkedTrace:
        return link(read_kineto(self.file()))

    def save(self, folder: Path, name: str = "made.json") -> Path:
        path = folder / name
        path.write_bytes(self.content())
        return path


def made_run(*traces: Made) -> TraceRun:
    return run_of([read_kineto(t.file(f"rank{t.rank}.json")) for t in traces])


def two_step_training(host_us: float = 50.0, kernel_us: float = 200.0) -> Made:
    """Two GPU-bound steps of three ops each: linear, relu, and a backward on its own thread."""
    made = Made()
    free = 0.0
    for number in range(3):
        start = 1000.0 + number * 3 * max(host_us, kernel_us)
        made.step(number, start, 3 * max(host_us, kernel_us))
        for i, (name, kernel, dims, tid) in enumerate(
            (
                ("aten::addmm", "volta_sgemm_128x64_tn", [[64], [256, 128], [128, 64]], MAIN),
                ("aten::relu", "vectorized_elementwise_kernel<4, relu>", [[256, 64]], MAIN),
                ("MmBackward0", "volta_sgemm_128x64_nt", None, AUTOGRAD),
            )
        ):
            at = start + 1 + i * host_us
            made.op(name, at, host_us - 5, dims, tid=tid)
            begin = max(free, at + 20)
            made.launch(
                at + 10, 8, f"{kernel}_{i}", begin, kernel_us, tid=tid, grid=[4, 2, 1], block=[128, 1, 1]
            )
            free = begin + kernel_us
    return made


def sized(made: Made) -> list[tuple[Kernel, Observation]]:
    """Every launched kernel of a trace with its sizes, and what was observed of it."""
    calls = Calls(made.linked())
    return [
        calls.kernel(launch, position, "compute")
        for launch in calls.linked.launches
        for position in range(len(launch.gpu))
    ]
