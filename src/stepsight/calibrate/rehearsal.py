"""What lies between microbenchmarks and a step, found on rehearsal steps.

Caches that other operators have emptied, memory that all ranks share, threads of the
communication library on the rank's own core, Python between operators: each makes a kind of
work slower by about the same factor in every step. The factors are those that bring the
simulated steps of random workloads closest to their measured times; where the steps do not
say, a factor stays at one.
"""

from __future__ import annotations

import platform as host_platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepsight.constants import area
from stepsight.errors import InputError
from stepsight.estimate import FloatArray, IntArray
from stepsight.hardware.gpus import find_gpu
from stepsight.hardware.spec import BYTES_PER_GB, ContentionSpec, GpuSpec
from stepsight.kernels.measured import MeasuredProcessor
from stepsight.overheads.tables import op_class
from stepsight.platform.load import Platform
from stepsight.program.job import Collective, Op
from stepsight.run.memory import machine_memory_bytes
from stepsight.simulate.engine import Priced
from stepsight.simulate.lowering import launches_of
from stepsight.simulate.price import PricedJob, price
from stepsight.simulate.timeline import run
from stepsight.workload.files import Workload

_CONSTANTS = area("calibrate")
NEWTON_STEP = _CONSTANTS.number("NEWTON_STEP")
NOISE_OF_STEPS = _CONSTANTS.number("NOISE_OF_STEPS")
PRIOR = np.array(_CONSTANTS.numbers("PRIOR"))
TURNS_OF_NEWTON = _CONSTANTS.whole("TURNS_OF_NEWTON")

KINDS = (
    "gemm", "vector", "lookup forward", "lookup backward", "communication", "host forward", "host backward",
    "host optimizer", "host collective", "overlap",
)  # fmt: skip
"""The kinds of work that have a factor of their own; "overlap" is what compute and communication
cost each other while they run side by side (the slowdowns less one)."""
_HOST = {"forward": 5, "view": 5, "copy": 5, "backward": 6, "optimizer": 7, "collective": 8}


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """One workload with its measured step, priced by the microbenchmarks' models."""

    name: str
    priced: PricedJob
    measured_us: float
    launch_kind: tuple[IntArray, ...]
    mark_kind: tuple[IntArray, ...]

    @classmethod
    def of(cls, workload: Workload, measured_us: float, platform: Platform, device: str) -> Rehearsal:
        priced = price(workload.job(device), platform)
        launches, marks = [], []
        for lane in priced.lanes:
            ops = priced.job.programs[int(lane.programs[0])].ops
            launches.append(
                np.array([_launch_kind(op, i) for op in ops for i in range(len(launches_of(op)))])
            )
            kind = np.full(lane.lane.tape.marks, 5)
            for i, op in enumerate(ops):
                first, last = lane.lane.tape.op_start_mark[i], lane.lane.tape.op_end_mark[i]
                kind[first : last + 1] = _HOST[op_class(op.name)]
            marks.append(kind)
        return cls(workload.name, priced, measured_us, tuple(launches), tuple(marks))

    def step_us(self, factors: FloatArray, platform: Platform) -> float:
        """The simulated step when every kind of work takes ``factors`` times as long."""
        lanes = []
        for lane, launches, marks in zip(self.priced.lanes, self.launch_kind, self.mark_kind, strict=True):
            host = lane.times.host_us * factors[marks][:, None, None]
            device = (
                lane.times.device_us * factors[launches][:, None, None]
                if len(launches)
                else lane.times.device_us
            )
            lanes.append(replace(lane, times=Priced(host, device)))
        contention = scaled_contention(platform.spec.contention, float(factors[-1]))
        crowded = replace(platform, spec=replace(platform.spec, contention=contention))
        return run(replace(self.priced, lanes=tuple(lanes)), crowded).step_us


def scaled_contention(contention: ContentionSpec, factor: float) -> ContentionSpec:
    """Slowdowns whose excess over one is ``factor`` times as large."""
    return replace(
        contention,
        compute_under_comm=round(1 + (contention.compute_under_comm - 1) * factor, 6),
        comm_under_compute=round(1 + (contention.comm_under_compute - 1) * factor, 6),
    )


def _launch_kind(op: Op, position: int) -> int:
    item = launches_of(op)[position]
    if isinstance(item, Collective):
        return 4
    return {"gemm": 0, "embedding": 2, "embedding_backward": 3}.get(item.family, 1)


@dataclass(frozen=True, slots=True)
class InStep:
    """The factors by kind of work, and how well the steps are met with and without them."""

    factors: Mapping[str, float]
    errors_before: Mapping[str, float]
    errors_after: Mapping[str, float]

    @property
    def spread(self) -> float:
        """Standard deviation of ln(predicted / measured) over the rehearsals."""
        return (
            float(np.sqrt(np.mean(np.square(list(self.errors_after.values()))))) if self.errors_after else 0.0
        )


def find_factors(rehearsals: Sequence[Rehearsal], platform: Platform) -> InStep:
    """The most probable factors: Gauss–Newton on ln(predicted / measured) with a prior at one."""
    x = np.zeros(len(KINDS))
    if not rehearsals:
        return InStep(dict.fromkeys(KINDS, 1.0), {}, {})
    first = _errors(rehearsals, x, platform)
    slope = np.zeros((len(rehearsals), len(x)))
    for turn in range(TURNS_OF_NEWTON):
        errors = _errors(rehearsals, x, platform)
        weight = 1 / (
            NOISE_OF_STEPS**2 + (0.5 * errors) ** 2
        )  # a step that was disturbed must not bend the rest
        if turn % 2 == 0:  # the slopes change little from one turn to the next
            slope = np.stack(
                [
                    (_errors(rehearsals, x + NEWTON_STEP * unit, platform) - errors) / NEWTON_STEP
                    for unit in np.eye(len(x))
                ],
                axis=1,
            )
        normal = slope.T @ (weight[:, None] * slope) + np.diag(PRIOR**-2.0)
        move = np.linalg.solve(normal, -slope.T @ (weight * errors) - x / PRIOR**2)
        x = x + np.clip(move, -0.5, 0.5)
        if np.abs(move).max() < 0.01:
            break
    last = _errors(rehearsals, x, platform)
    names = [r.name for r in rehearsals]
    factors = {kind: round(float(f), 4) for kind, f in zip(KINDS, np.exp(x), strict=True)}
    return InStep(
        factors, dict(zip(names, first.tolist(), strict=True)), dict(zip(names, last.tolist(), strict=True))
    )


def _errors(rehearsals: Sequence[Rehearsal], x: FloatArray, platform: Platform) -> FloatArray:
    factors = np.exp(x)
    return np.array([np.log(r.step_us(factors, platform) / r.measured_us) for r in rehearsals])


ABOUT = "measured by stepsight calibrate"
CORES_PER_SM = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128}
"""fp32 lanes of a multiprocessor by compute capability (CUDA programming guide)."""
L2_PER_MEMORY = 2.5
"""L2 over memory bandwidth of a GPU outside the catalogue: V100 2.4, A100 2.9, H100 1.7 (catalogue)."""


def cpu_spec(machine: MeasuredProcessor, ranks: int) -> GpuSpec:
    """One rank's share of this machine: a single core at a nominal clock, and its part of the memory."""
    return GpuSpec(
        name=_cpu_name(), vendor=host_platform.machine(), architecture="cpu", sms=1, clock_mhz=1000.0,
        memory_gb=max(machine_memory_bytes() / BYTES_PER_GB / ranks, 0.1), memory_gbps=machine.memory_gbps,
        l2_mb=last_level_cache_mb(), l2_gbps=4 * machine.memory_gbps,
        peak_tflops={"fp32": machine.gflops / 1e3}, pcie_gbps=machine.memory_gbps, launch_us=0.0,
        kernel_gap_us=0.0, source=ABOUT,
    )  # fmt: skip


def cuda_spec(properties: Any, machine: MeasuredProcessor) -> GpuSpec:
    """The GPU of these ``torch.cuda.get_device_properties``; memory as this board has it."""
    memory_gb = properties.total_memory / BYTES_PER_GB
    entry = find_gpu(properties.name)
    if entry is not None:
        return replace(entry.gpu, memory_gb=memory_gb, source=f"{entry.gpu.source}; memory: the driver")
    sms, clock_khz = properties.multi_processor_count, getattr(properties, "clock_rate", 0)
    l2_bytes = getattr(properties, "L2_cache_size", 0)
    lanes = CORES_PER_SM.get((properties.major, properties.minor), 0)
    if not (sms and clock_khz and l2_bytes and lanes):
        raise InputError(
            properties.name, "is not in the catalogue, and its driver does not say clock, L2 and lanes",
            "add a TOML file for it (docs/platforms.md) and calibrate with that name",
        )  # fmt: skip
    clock_mhz = clock_khz / 1e3
    return GpuSpec(
        name=properties.name, vendor="nvidia", architecture=f"sm_{properties.major}{properties.minor}",
        sms=sms, clock_mhz=clock_mhz, memory_gb=memory_gb, memory_gbps=machine.memory_gbps,
        l2_mb=l2_bytes / 2**20, l2_gbps=L2_PER_MEMORY * machine.memory_gbps,
        peak_tflops={"fp32": 2 * lanes * sms * clock_mhz / 1e6}, pcie_gbps=15.75,
        source=f"the driver; memory bandwidth {ABOUT}; PCIe: generation 3 assumed",
    )  # fmt: skip


def processor_spec(device: str, machine: MeasuredProcessor, ranks: int) -> GpuSpec:
    """What one rank computes on."""
    if device == "cpu":
        return cpu_spec(machine, ranks)
    import torch

    return cuda_spec(torch.cuda.get_device_properties(0), machine)


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return host_platform.processor() or "cpu"


def last_level_cache_mb() -> float:
    """The largest cache the operating system tells of; 1 MB where it tells nothing."""
    sizes = [1.0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        if text.endswith("K"):
            sizes.append(float(text[:-1]) / 1024)
        elif text.endswith("M"):
            sizes.append(float(text[:-1]))
    return max(sizes)


CALIBRATION, VALIDATION = 1, 2
"""First entry of every seed: the two never share a draw."""

# METHOD §7 scaled to ranks of one or two CPU cores: dims, batches, tables per GPU and MLP widths
# divided by two to eight, so that a step takes tens of milliseconds as it does on a GPU.
DIMS = (32, 64, 128)
BATCHES_PER_RANK = (128, 256, 512, 1024)
TABLES_PER_RANK = (3, 8)
WIDTHS = (128, 256, 512)
FEATURES = (128, 256, 512)
MOST_TABLE_BYTES = 64 << 20
HEAVY_POOLING = 20.0
SKEW = (0.0, 1.25)

FAMILIES = ("bert", "gpt2", "xlnet")
LAYERS = (2, 4)
HIDDEN = (128, 192, 256, 384)
SEQUENCES = (32, 64, 128)
TOKENS_PER_RANK = (64, 1024)
VOCABULARIES = (2000, 5000, 10000)

Document = dict[str, Any]


def random_dlrm(ranks: int, seed: int, role: int = CALIBRATION) -> Document:
    """A DLRM as its TOML file would read: every other one has only heavy tables (mean pooling ≥ 20)."""
    rng = np.random.default_rng([role, 1, ranks, seed])
    heavy = seed % 2 == 0
    dot = bool(rng.random() < 0.5)
    width, dim = int(rng.choice(WIDTHS)), int(rng.choice(DIMS))
    count = int(rng.integers(TABLES_PER_RANK[0] * ranks, TABLES_PER_RANK[1] * ranks + 1))
    tables = [_table(rng, heavy, dim if dot else int(rng.choice(DIMS))) for _ in range(count)]
    return {
        "kind": "dlrm",
        "name": f"dlrm-{'heavy' if heavy else 'mixed'}-{seed}",
        "batch": int(rng.choice(BATCHES_PER_RANK)) * ranks,
        "dense": {
            "features": int(rng.choice(FEATURES)),
            "bottom": [width, 2 * width, width // 2, dim],
            "top": [2 * width, width, width // 2, 1],
            "interaction": "dot" if dot else "cat",
        },
        "tables": tables,
        "training": {"precision": "fp32", "optimizer": "sgd", "loss": "bce"},
        "parallel": {"ranks": ranks},
    }


def random_torchrec(ranks: int, seed: int, role: int = CALIBRATION) -> Document:
    """The same models as TorchRec trains them: one dim, row-wise adagrad on tables, adagrad on the rest."""
    document = random_dlrm(ranks, seed, role)
    dim = document["dense"]["bottom"][-1]
    dense = {**document["dense"], "interaction": "dot" if seed % 4 else "dcnv2"}
    if dense["interaction"] == "dcnv2":
        dense |= {"cross_layers": 2, "cross_rank": 64}
    return {
        **document,
        "name": document["name"].replace("dlrm", "torchrec"),
        "dense": dense,
        "tables": [{**table, "dim": dim, "rows": min(table["rows"], MOST_TABLE_BYTES // (4 * dim))}
                   for table in document["tables"]],
        "training": {
            "optimizer": "adagrad", "sparse_optimizer": "rowwise_adagrad", "loss": "bce_logits",
            "stack": "torchrec",
        },
        "parallel": {"ranks": ranks, "cpu_lookup": "fbgemm"},
    }  # fmt: skip


def _table(rng: np.random.Generator, heavy: bool, dim: int) -> Document:
    rows = int(min(np.exp(rng.uniform(np.log(2e3), np.log(1e6))), MOST_TABLE_BYTES / (4 * dim)))
    low, high = (HEAVY_POOLING, 3 * HEAVY_POOLING) if heavy else (1.0, HEAVY_POOLING)
    pooling = round(float(np.exp(rng.uniform(np.log(low), np.log(high)))), 1)
    skew = round(float(rng.uniform(*SKEW)), 2)
    return {"rows": rows, "dim": dim, "pooling": pooling, "indices": {"zipf": skew}}


def random_transformer(ranks: int, seed: int, role: int = CALIBRATION, family: str = "") -> Document:
    """A small BERT, GPT-2 or XLNet trained by data parallelism with AdamW."""
    rng = np.random.default_rng([role, 2, ranks, seed])
    chosen = family or FAMILIES[seed % len(FAMILIES)]
    hidden, sequence = int(rng.choice(HIDDEN)), int(rng.choice(SEQUENCES))
    tokens = np.exp(rng.uniform(*np.log(TOKENS_PER_RANK)))
    return {
        "kind": "transformer",
        "name": f"{chosen}-{seed}",
        "family": chosen,
        "layers": int(rng.integers(LAYERS[0], LAYERS[1] + 1)),
        "hidden": hidden,
        "heads": hidden // int(rng.choice((32, 64))),
        "ffn": 4 * hidden,
        "vocab": int(rng.choice(VOCABULARIES)),
        "sequence": sequence,
        "batch_per_rank": max(1, round(float(tokens) / sequence)),
        "training": {"precision": "fp32", "optimizer": "adamw", "attention": "eager"},
        "parallel": {"data": ranks},
    }
