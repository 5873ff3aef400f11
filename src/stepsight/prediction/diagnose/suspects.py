"""What may be wrong with a slow run: each suspect is a change of the job or the machine that can be simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.platform.learned import ATTENTION, EMBEDDING, GEMM, HOST, LINK, MEMORY_BOUND, NETWORK
from stepsight.platform.load import Platform
from stepsight.prediction.learn.response import Response

SEVERITIES = np.geomspace(1.05, 6.0, 60)
"""Factors that a condition may be worse by; all are equally likely in logarithms up to `USUAL_MOST`."""
USUAL_MOST = 4.0
COMPUTE = (GEMM, ATTENTION, MEMORY_BOUND, EMBEDDING)
TCP_SLOWDOWN = 4.0
"""NCCL over sockets against RDMA on one NIC: kernel copies bound it to a few GB/s per connection."""
FASTER_THAN_NOISE = 0.01
"""A change that moves the step by less than this explains nothing."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A condition that could be worse than assumed.

    ``steps_us`` are the steps that it would give, by severity; one for a yes-or-no condition. ``set_line``
    writes a severity as the option that simulates it; ``check`` is the cheapest measurement that would show it;
    ``prior``: how common it is against the others.
    """

    name: str
    steps_us: FloatArray
    severities: FloatArray
    set_line: Callable[[float], str]
    check: str
    prior: float = 1.0

    @property
    def continuous(self) -> bool:
        return len(self.severities) > 1


def machine_suspects(response: Response, step_us: float, platform: Platform) -> list[Suspect]:
    """Parts of the machine that could be slower, one at a time."""
    spec = platform.spec
    several, nodes = spec.ranks > 1, spec.nodes > 1
    found = []
    for name, parts, line, check, applies in (
        ("slower host", (HOST,), lambda f: f"platform.host.speed={1 / f:.2f}", HOST_CHECK, True),
        ("lower power limit or clocks", (GEMM, ATTENTION), _power(platform), POWER_CHECK, True),
        ("slower device memory", (MEMORY_BOUND, EMBEDDING), lambda f: f"platform.gpu.memory_gbps={spec.gpu.memory_gbps / f:.0f}", MEMORY_CHECK, True),
        ("slower link inside the node", (LINK,), lambda f: f"platform.link.gbps={spec.link.gbps / f:.4g}", LINK_CHECK, several),
        ("slower network between nodes", (NETWORK,), lambda f: f"platform.nic.gbps={(spec.nic.gbps if spec.nic else 0) / f:.4g}", NETWORK_CHECK, nodes),
        ("a straggler: one slow GPU or uneven work", COMPUTE, lambda f: f"all compute of one rank ×{f:.2f}", STRAGGLER_CHECK, several),
    ):  # fmt: skip
        if applies:
            asked: list[Mapping[str, float]] = [dict.fromkeys(parts, float(f)) for f in SEVERITIES]
            found.append(Suspect(name, _ratios(response, asked) * step_us, SEVERITIES, line, check))
    if nodes:
        tcp: Sequence[Mapping[str, float]] = [{NETWORK: TCP_SLOWDOWN}]
        gbps = (spec.nic.gbps if spec.nic else 0) / TCP_SLOWDOWN
        found.append(
            Suspect("TCP instead of RDMA", _ratios(response, tcp) * step_us, np.array([TCP_SLOWDOWN]),
                    lambda _: f"platform.nic.gbps={gbps:.4g}", TCP_CHECK, 0.5)
        )  # fmt: skip
    waits = np.geomspace(0.05, 4.0, 60)
    found.append(
        Suspect("data loader", step_us * (1 + waits), 1 + waits, lambda f: f"{(f - 1) * step_us / 1e3:.0f} ms of waiting for data per step", DATA_CHECK, 0.7)
    )  # fmt: skip
    return found


def _ratios(response: Response, asked: Sequence[Mapping[str, float]]) -> FloatArray:
    steps = response.steps_us([{}, *asked])
    return np.asarray(steps[1:] / steps[0])


def _power(platform: Platform) -> Callable[[float], str]:
    clock = platform.spec.gpu.clock_mhz
    return lambda f: f"platform.gpu.clock_mhz={clock / f:.0f}"


HOST_CHECK = "a profiler trace of one step: gaps between kernels; or the same job with twice the batch"
POWER_CHECK = (
    "nvidia-smi --query-gpu=clocks.sm,power.draw,clocks_event_reasons.active --format=csv during a step"
)
MEMORY_CHECK = "nvbandwidth or a large torch copy_ on one GPU"
LINK_CHECK = "all_reduce_perf of nccl-tests on one node; nvidia-smi topo -m"
NETWORK_CHECK = "all_reduce_perf of nccl-tests over two nodes; the same job on one node"
STRAGGLER_CHECK = "step time by rank (largest against median), or the same job without one node"
TCP_CHECK = "NCCL_DEBUG=INFO: the log names NET/Socket instead of NET/IB"
DATA_CHECK = "data time of the loop, or a step on a batch that stays on the GPU"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the job that may not be what was described."""

    name: str
    assignments: tuple[str, ...]
    check: str
    prior: float = 0.5


SETTINGS = (
    Setting("no flash attention", ("training.attention=eager",), "profiler: softmax kernels instead of flash_fwd"),
    Setting("fp32 instead of lower precision", ("training.precision=fp32",), "dtype of the GEMM kernels in a profiler trace"),
    Setting("tf32 instead of bf16", ("training.precision=tf32",), "dtype of the GEMM kernels in a profiler trace", 0.3),
    Setting("fp32 instead of tf32", ("training.precision=fp32",), "torch.backends.cuda.matmul.allow_tf32"),
    Setting("no torch.compile", ("training.compiled=false",), "profiler: names of kernels without triton_", 0.5),
    Setting("no CUDA graphs", ("training.cuda_graphs=false",), "profiler: cudaLaunchKernel instead of cudaGraphLaunch", 0.5),
    Setting("no CUDA graph", ("training.cuda_graph=false",), "profiler: cudaLaunchKernel instead of cudaGraphLaunch", 0.5),
    Setting("optimizer not fused", ("training.fused_optimizer=false",), "profiler: one kernel for each tensor in optimizer.step", 0.3),
    Setting("buckets of 1 MB", ("parallel.bucket_mb=1",), "bucket_cap_mb of DDP", 0.3),
    Setting("gradients not overlapped", ("parallel.overlap_gradients=false",), "profiler: all_reduce after the backward pass", 0.4),
    Setting("full recomputation", ("training.recompute=full",), "the framework's recomputation flag", 0.3),
    Setting("recomputation", ("training.recompute=true",), "torch.utils.checkpoint in the model", 0.3),
)  # fmt: skip
"""Settings that are wrong silently; each is simulated where the job has it and it differs."""


def log_density(suspect: Suspect, measured_us: float, spread: float) -> FloatArray:
    """Log of how well each severity explains the measurement, with how likely the severity is."""
    apart = (math.log(measured_us) - np.log(suspect.steps_us)) / spread
    found = -0.5 * apart**2 - math.log(spread * math.sqrt(2 * math.pi))
    if not suspect.continuous:
        return np.asarray(found)
    beyond = np.maximum(np.log(suspect.severities / USUAL_MOST), 0.0)
    likely = -0.5 * (beyond / 0.2) ** 2
    likely = likely - math.log(np.exp(likely).sum())
    return np.asarray(found + likely)
