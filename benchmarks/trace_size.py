"""A profiler trace of a million events: how long reading and predicting take, and how much memory.

python benchmarks/trace_size.py [--events 1000000] [--json] [--packed] [--keep FILE]

The trace is made here: training steps of a transformer as torch.profiler records them, with nested operators,
their shapes, launches, flow events, a backward thread and an optimizer. It is read and predicted by a process
of its own, so that its peak memory is its own. Bars: under 60 s, 4 GB, and memory of at most four times the
unpacked trace (above what Python and the package take before they read).
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_SECONDS, MOST_GB, MOST_TIMES = 60.0, 4.0, 4.0
TOKENS, WIDTH, LAYERS = 4096, 1024, 24
MAIN, BACKWARD, STREAM = 4001, 4002, 7
GAP_US, LAUNCH_US, VIEW_US = 1.5, 4.0, 2.0


class Recording:
    """Events of one rank, in the order in which they happen. Host and GPU have clocks of their own."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.host_us, self.gpu_us, self.number = 1000.0, 1000.0, 0

    def span(
        self, cat: str, name: str, ts: float, dur: float, pid: int, tid: int, **args: Any
    ) -> dict[str, Any]:
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": round(ts, 3),
                 "dur": round(dur, 3), "args": args}  # fmt: skip
        self.events.append(event)
        return event

    def launch(self, kernel: str, kernel_us: float, tid: int) -> None:
        """A launch call, its kernel and the arrow between them."""
        self.number += 1
        begin = self.host_us
        self.span("cuda_runtime", "cudaLaunchKernel", begin, LAUNCH_US, 4000, tid,
                  **{"External id": self.number, "cbid": 211, "correlation": self.number})  # fmt: skip
        self.host_us += LAUNCH_US
        start = max(self.gpu_us, self.host_us)
        self.span("kernel", kernel, start, kernel_us, 0, STREAM, device=0, context=1, stream=STREAM,
                  correlation=self.number, grid=[128, 8, 1], block=[256, 1, 1], **{
                      "External id": self.number, "queued": 0, "registers per thread": 128,
                      "shared memory": 49152, "blocks per SM": 9.48, "warps per SM": 75.85,
                      "est. achieved occupancy %": 25})  # fmt: skip
        self.gpu_us = start + kernel_us
        flow = {"cat": "ac2g", "name": "ac2g", "id": self.number}
        self.events.append({"ph": "s", **flow, "pid": 4000, "tid": tid, "ts": round(begin, 3)})
        self.events.append({"ph": "f", **flow, "pid": 0, "tid": STREAM, "ts": round(start, 3), "bp": "e"})

    def op(
        self, names: str, dims: list[Any], kernels: list[tuple[str, float]], tid: int = MAIN, views: int = 0
    ) -> None:
        """Operators nested in each other (``a>b``); the innermost launches."""
        begin, opened = self.host_us, []
        for name in names.split(">"):
            types = ["float" if d else "Scalar" for d in dims]
            opened.append(self.span(
                "cpu_op", name, self.host_us, 0.0, 4000, tid,
                **{"External id": self.number + 1, "Ev Idx": len(self.events), "Input Dims": dims,
                   "Input type": types, "Concrete Inputs": ["" for _ in dims],
                   "Input Strides": [[d[-1], 1] if len(d) > 1 else d for d in dims]},
            ))  # fmt: skip
            self.host_us += GAP_US
        for i in range(views):
            self.span(
                "cpu_op",
                ("aten::t", "aten::view", "aten::transpose")[i % 3],
                self.host_us,
                VIEW_US,
                4000,
                tid,
                **{"External id": self.number + 1, "Input Dims": dims[:1], "Input type": ["float"]},
            )
            self.host_us += VIEW_US + GAP_US
        for kernel, kernel_us in kernels:
            self.launch(kernel, kernel_us, tid)
        for event in reversed(opened):
            self.host_us += GAP_US
            event["dur"] = round(self.host_us - event["ts"], 3)
        assert self.host_us > begin


def step(made: Recording, number: int) -> None:
    """One training step: forward, backward on its thread, optimizer."""
    begin = made.host_us
    mark = made.span("user_annotation", f"ProfilerStep#{number}", begin, 0.0, 4000, MAIN)
    x = [TOKENS, WIDTH]
    for _ in range(LAYERS):
        made.op("aten::layer_norm>aten::native_layer_norm", [x, [], [WIDTH], [WIDTH], []],
                [("void at::native::vectorized_layer_norm_kernel<float, float>", 40.0)])  # fmt: skip
        for out in (3 * WIDTH, WIDTH, 4 * WIDTH, WIDTH):
            kernels = [("ampere_sgemm_128x64_tn", 2e-9 * TOKENS * WIDTH * out / 16 * 1e3)]
            made.op("aten::linear>aten::addmm", [[out], x, [WIDTH, out]], kernels, views=3)
        made.op("aten::softmax>aten::_softmax", [[4, 16, 1024, 1024], [], []],
                [("void softmax_warp_forward<float, float, float, 10>", 400.0)])  # fmt: skip
        for name in ("aten::gelu", "aten::native_dropout", "aten::add"):
            made.op(name, [x, x], [(f"void at::native::vectorized_elementwise_kernel<4, {name[6:]}>", 30.0)])
    for _ in range(LAYERS):
        for out in (WIDTH, 4 * WIDTH, WIDTH, 3 * WIDTH):
            nested = "autograd::engine::evaluate_function: AddmmBackward0>AddmmBackward0>aten::mm"
            kernel_us = 2e-9 * TOKENS * WIDTH * out / 16 * 1e3
            made.op(
                nested, [[TOKENS, out], [out, WIDTH]], [("ampere_sgemm_128x64_nn", kernel_us)], BACKWARD, 3
            )
            made.op(nested, [[out, TOKENS], x], [("ampere_sgemm_128x64_nt", kernel_us)], BACKWARD, 2)
        for name in ("NativeLayerNormBackward0", "SoftmaxBackward0", "GeluBackward0", "AddBackward0"):
            kernels = [("void at::native::vectorized_elementwise_kernel<4, backward>", 45.0)]
            made.op(f"autograd::engine::evaluate_function: {name}>{name}", [x, x], kernels, BACKWARD)
    for i in range(LAYERS):
        made.op("Optimizer.step#AdamW.step>aten::_foreach_addcdiv_", [[[WIDTH, WIDTH]] * 4],
                [("void at::native::multi_tensor_apply_kernel", 60.0 + i % 3)])  # fmt: skip
    mark["dur"] = round(made.host_us - begin, 3)


def document(events: int) -> dict[str, Any]:
    """A trace of whole steps with at least this many events."""
    made = Recording()
    for number in steps_until(made, events):
        step(made, number)
    return {
        "schemaVersion": 1, "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 42_000_000_000,
                              "computeMajor": 8, "computeMinor": 0, "numSms": 108}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
        "traceEvents": made.events,
    }  # fmt: skip


def steps_until(made: Recording, events: int) -> Iterator[int]:
    number = 0
    while len(made.events) < events or number < 2:
        yield number
        number += 1


def peak_gb() -> float:
    """The most memory of this process so far; getrusage would count what its parent had before it began."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("VmHWM"))


def once(path: str) -> dict[str, float]:
    """Read and predict, in this process."""
    from stepsight.prediction.traced.predict import predict_trace
    from stepsight.trace.run import load_trace

    before_gb = peak_gb()
    begin, cpu = time.perf_counter(), time.process_time()
    run = load_trace(path)
    read_s = time.perf_counter() - begin
    prediction = predict_trace(run)
    return {
        "seconds": time.perf_counter() - begin, "read_s": read_s, "cpu_s": time.process_time() - cpu,
        "before_gb": before_gb, "peak_gb": peak_gb(),
        "step_ms": prediction.step_time_us / 1e3, "measured_ms": (prediction.measured_us or 0.0) / 1e3,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--packed", action="store_true", help="as .json.gz")
    parser.add_argument("--keep", type=Path, help="write the trace here and keep it")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(once(given.one)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = given.keep or Path(folder) / ("trace.json.gz" if given.packed else "trace.json")
        content = document(given.events)
        text = json.dumps(content).encode()
        path.write_bytes(gzip.compress(text, 5) if path.suffix == ".gz" else text)
        about = {"events": len(content["traceEvents"]), "megabytes": len(text) / 1e6}
        del content, text
        done = subprocess.run([sys.executable, __file__, "--one", str(path)], check=True, capture_output=True)
    row = {**about, **json.loads(done.stdout)}
    row["times_the_trace"] = (row["peak_gb"] - row["before_gb"]) * 1e3 / row["megabytes"]
    row["met"] = (
        row["seconds"] < MOST_SECONDS and row["peak_gb"] < MOST_GB and row["times_the_trace"] <= MOST_TIMES
    )
    if given.json:
        print(json.dumps(row, indent=2))
    else:
        print(
            f"{row['events']:,} events, {row['megabytes']:.0f} MB unpacked: read {row['read_s']:.1f} s, read "
            f"and predicted {row['seconds']:.1f} s (CPU {row['cpu_s']:.1f} s), {row['peak_gb']:.2f} GB, "
            f"{row['times_the_trace']:.1f} times the trace; step {row['step_ms']:.2f} ms, measured "
            f"{row['measured_ms']:.2f} ms: {'met' if row['met'] else 'MISSED'}"
        )
    return 0 if row["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
