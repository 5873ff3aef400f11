"""What may be wrong with a slow run: changes of the machine or the job, each one simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepsight.capturing.step import CapturedStep
from stepsight.constants import area
from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray
from stepsight.platform.evidence import ATTENTION, EMBEDDING, GEMM, HOST, LINK, MEMORY_BOUND, NETWORK
from stepsight.platform.load import Platform
from stepsight.prediction.learn.regression import Response
from stepsight.prediction.learn.response import AskedStep, JobFile, ask

C = area("prediction")

SEVERITIES = np.geomspace(1.05, 6.0, 60)
"""Factors that a condition may be worse by; all equally likely in logarithms up to `USUAL_MOST`."""
USUAL_MOST, BEYOND_SPREAD = 4.0, 0.2
SIMULATED = np.array([1.3, 2.0, 3.0, 4.5, 6.0])
"""Factors that a slower machine is simulated at; those between are interpolated in logarithms."""
WAITS = np.geomspace(0.05, 4.0, 60)
"""Waits for data, as a multiple of the step."""
COMPUTE = (GEMM, ATTENTION, MEMORY_BOUND, EMBEDDING)
FASTER_THAN_NOISE = C.FASTER_THAN_NOISE
DATA_LOADER = "data loader"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A condition that could be worse than assumed.

    ``steps_us`` are the steps that it would give, by severity; one for a yes-or-no condition. ``change``
    writes a severity as the option that simulates it; ``check`` is the cheapest measurement that would show
    it; ``prior`` how common it is against the others.
    """

    name: str
    steps_us: FloatArray
    severities: FloatArray
    change: Callable[[float], str]
    check: str
    prior: float = 1.0

    def at(self, severity: float) -> float:
        """The step at a severity."""
        return float(np.interp(severity, self.severities, self.steps_us))

    def log_density(self, measured_us: float, spread: float) -> FloatArray:
        """By severity: how well it explains the measurement, and how likely it is."""
        apart = (math.log(measured_us) - np.log(self.steps_us)) / spread
        found = -0.5 * apart**2
        if len(self.severities) == 1:
            return np.asarray(found)
        beyond = np.maximum(np.log(self.severities / USUAL_MOST), 0.0)
        likely = -0.5 * (beyond / BEYOND_SPREAD) ** 2
        return np.asarray(found + likely - math.log(np.exp(likely).sum()))


@dataclass(frozen=True, slots=True)
class _Condition:
    """A part of the machine that could be slower: a figure of the platform, divided by the severity."""

    name: str
    field: str
    check: str
    parts: tuple[str, ...]
    """What it moves on a platform whose own measurements stand for that figure."""


CONDITIONS = (
    _Condition(
        "slower host", "host.speed",
        "profile one step: gaps between kernels on the GPU; or the same job with twice the batch", (HOST,),
    ),
    _Condition(
        "lower power limit or clocks", "gpu.power_w",
        "nvidia-smi --query-gpu=clocks.sm,power.draw,clocks_event_reasons.active --format=csv during a step",
        (GEMM, ATTENTION),
    ),
    _Condition(
        "slower device memory", "gpu.memory_gbps",
        "nvbandwidth, or time a large tensor.copy_ on one GPU", (MEMORY_BOUND, EMBEDDING),
    ),
    _Condition(
        "slower link inside the node", "link.gbps",
        "all_reduce_perf of nccl-tests on one node; nvidia-smi topo -m", (LINK,),
    ),
    _Condition(
        "slower network between nodes", "nic.gbps",
        "all_reduce_perf of nccl-tests over two nodes; the same job on one node", (NETWORK,),
    ),
)  # fmt: skip
STRAGGLER = "a straggler or uneven work"
STRAGGLER_CHECK = (
    "step time before the first collective by rank, largest against median; the job without one node"
)
TCP_CHECK = "NCCL_DEBUG=INFO: the log names NET/Socket instead of NET/IB"
DATA_CHECK = "data time of the loop, or a step on a batch that stays on the GPU"


@dataclass(frozen=True, slots=True)
class _Setting:
    """A setting of the job that may not be what was described."""

    name: str
    assignment: str
    check: str
    prior: float = C.LESS_COMMON

    def always(self, _: float) -> str:
        """The option that simulates it, whatever the severity."""
        return self.assignment


_GEMM_NAMES = "profile one step: the names of GEMM kernels hold their type"
SETTINGS = (
    _Setting("no flash attention", "training.attention=eager", "profile a step: no flash_fwd kernel"),
    _Setting("fp32 instead of a lower precision", "training.precision=fp32", _GEMM_NAMES),
    _Setting("tf32 instead of bf16", "training.precision=tf32", _GEMM_NAMES),
    _Setting("no torch.compile", "training.compile=false", "profile one step: no kernels named triton_"),
    _Setting("no CUDA graphs", "training.cuda_graphs=false", "profile one step: no cudaGraphLaunch"),
    _Setting("no CUDA graph", "training.cuda_graph=false", "profile one step: no cudaGraphLaunch"),
    _Setting("optimizer not fused", "training.fused_optimizer=false", "profile optimizer.step"),
    _Setting("buckets of 1 MB", "parallel.bucket_mb=1", "bucket_cap_mb of DistributedDataParallel"),
    _Setting("gradients not overlapped", "parallel.overlap_gradients=false", "profile one step"),
    _Setting("full recomputation", "training.recompute=full", "the framework's recomputation flag"),
    _Setting("recomputation", "training.recompute=true", "torch.utils.checkpoint in the model"),
)  # fmt: skip
"""Settings that are wrong silently. Each is simulated where the job has it and it makes a difference."""


def suspects(job: JobFile, asked: AskedStep, step_us: float, platform: Platform) -> dict[str, Suspect]:
    """Everything that could make this job slower than ``step_us``, by name."""
    found = [*_machine(job, asked, step_us, platform)]
    if not isinstance(job.load(), CapturedStep):
        found += _settings(job, asked.step_us, step_us, platform)
    slower = (1 + FASTER_THAN_NOISE) * step_us
    return {one.name: one for one in found if one.steps_us.max() >= slower}


def _machine(job: JobFile, asked: AskedStep, step_us: float, platform: Platform) -> Iterator[Suspect]:
    """Parts of the machine that could be slower, one at a time, each simulated at a few severities."""
    spec, workload = platform.spec, job.load()
    for c in CONDITIONS:
        part, name = c.field.split(".")
        figure = getattr(getattr(spec, part), name, None)
        if figure is None or (part == "link" and spec.ranks == 1):
            continue
        if platform.folder or platform.site:
            at = SEVERITIES
            ratios = _ratios(asked.response, [dict.fromkeys(c.parts, float(f)) for f in SEVERITIES])
        else:
            at = np.array([1.0, *SIMULATED])
            slower = [ask(workload, _with(platform, part, name, figure / f)).step_us for f in SIMULATED]
            ratios = np.array([asked.step_us, *slower]) / asked.step_us
        steps = step_us * np.exp(np.interp(np.log(SEVERITIES), np.log(at), np.log(ratios)))
        yield Suspect(c.name, steps, SEVERITIES, _written(c.field, figure), c.check)
        if c.field == "nic.gbps":
            tcp = np.interp([C.TCP_SLOWDOWN], SEVERITIES, steps)
            written = _written(c.field, figure)
            yield Suspect(
                "TCP instead of RDMA", tcp, np.array([C.TCP_SLOWDOWN]), written, TCP_CHECK, C.LESS_COMMON
            )
    if spec.ranks > 1:
        ratios = _ratios(asked.response, [dict.fromkeys(COMPUTE, float(f)) for f in SEVERITIES])
        yield Suspect(
            STRAGGLER,
            ratios * step_us,
            SEVERITIES,
            "kernels of the slowest rank ×{:.2f}".format,
            STRAGGLER_CHECK,
        )

    def waiting(severity: float) -> str:
        return f"{(severity - 1) * step_us / 1e3:.1f} ms of waiting for data per step"

    yield Suspect(DATA_LOADER, step_us * (1 + WAITS), 1 + WAITS, waiting, DATA_CHECK, 0.5)


def _with(platform: Platform, part: str, name: str, value: float) -> Platform:
    """The platform with another figure."""
    changed = replace(getattr(platform.spec, part), **{name: value})
    return replace(platform, spec=replace(platform.spec, **{part: changed}))


def _ratios(response: Response, asked: Sequence[Mapping[str, float]]) -> FloatArray:
    steps = response.steps_us([{}, *asked])
    return np.asarray(steps[1:] / steps[0])


def _written(field: str, figure: float) -> Callable[[float], str]:
    return lambda severity: f"platform.{field}={figure / severity:.4g}"


def _settings(job: JobFile, usual_us: float, step_us: float, platform: Platform) -> Iterator[Suspect]:
    """Settings that the job may not have after all, where it has them."""
    seen: list[float] = []
    for setting in SETTINGS:
        try:
            changed_us = step_us * ask(job.changed(setting.assignment).load(), platform).step_us / usual_us
        except StepsightError:
            continue
        if not any(math.isclose(changed_us, other, rel_tol=1e-6) for other in seen):
            seen.append(changed_us)
            yield Suspect(
                setting.name, np.array([changed_us]), np.ones(1), setting.always, setting.check, setting.prior
            )
