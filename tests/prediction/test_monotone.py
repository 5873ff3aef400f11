"""More work, or less of a machine, never takes less time: random configurations, each changed in one way.

A step may fall by `SLACK`: tiles and waves of real kernels are not smooth.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import pytest

from stepsight.errors import StepsightError
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.runnable import check_runnable
from stepsight.simulate.timeline import simulate
from stepsight.workload.files import parse_workload

CONFIGURATIONS, GROUPS, SLACK = 300, 20, 0.002
GPUS = (
    "A100-SXM4-40G",
    "H100-SXM",
    "V100-SXM2",
    "L40S",
    "T4",
    "B200-SXM",
    "MI300X",
    "RTX-4090",
    "A100-PCIE-80G",
)
Change = tuple[str, dict[str, Any], str]


def transformer(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice((8, 12, 16, 32))
    hidden = heads * rng.choice((64, 128))
    return {
        "kind": "transformer", "family": rng.choice(("llama", "gpt2", "gpt", "bert")),
        "layers": rng.randint(1, 4), "hidden": hidden, "heads": heads, "ffn": hidden * rng.choice((2, 3, 4)),
        "vocab": rng.choice((32000, 50257, 128256)), "sequence": rng.choice((128, 500, 1024, 2048, 4096)),
        "batch_per_rank": rng.randint(1, 16), "parallel": {"data": rng.choice((1, 8, 16))},
        "training": {
            "precision": rng.choice(("fp32", "tf32", "fp16", "bf16")),
            "optimizer": rng.choice(("adamw", "sgd", "none")),
        },
    }  # fmt: skip


def dlrm(rng: random.Random) -> dict[str, Any]:
    dim = rng.choice((64, 128))
    return {
        "kind": "dlrm", "batch": rng.choice((512, 2048, 8192)),
        "dense": {"features": rng.choice((13, 256)), "bottom": [512, dim], "top": [1024, 512, 1]},
        "tables": [{"count": rng.randint(2, 16), "rows": rng.choice((1000, 1000000)), "dim": dim,
                    "pooling": float(rng.choice((1, 10, 40)))}],
        "training": {"precision": rng.choice(("fp32", "tf32", "bf16"))},
        "parallel": {"ranks": rng.choice((1, 8, 16))},
    }  # fmt: skip


def changes(document: dict[str, Any], platform: Platform) -> list[Change]:
    """What makes a step longer, and the field of the platform that it sets."""
    gpu, found = platform.spec.gpu, []
    if document["kind"] == "dlrm":
        table = document["tables"][0]
        found += [
            ("batch", {"batch": 2 * document["batch"]}, ""),
            ("pooling", {"tables": [{**table, "pooling": 2 * table["pooling"]}]}, ""),
        ]
    else:
        found += [
            ("batch", {"batch_per_rank": 2 * document["batch_per_rank"]}, ""),
            ("sequence", {"sequence": int(1.25 * document["sequence"])}, ""),
            ("layers", {"layers": 2 * document["layers"]}, ""),
        ]
    found.append(("multiprocessors", {}, f"gpu.sms={int(0.9 * gpu.sms)}"))
    found.append(("bandwidth", {}, f"gpu.memory_gbps={gpu.memory_gbps / 2}"))
    found.append(("clock", {}, f"gpu.clock_mhz={0.8 * gpu.clock_mhz}"))
    found.append(("power", {}, f"gpu.power_w={0.7 * (gpu.power_w or 300)}"))
    found.append(("host", {}, "host.speed=0.7"))
    if platform.spec.ranks > 1:
        found.append(("link", {}, f"link.gbps={0.8 * platform.spec.link.gbps}"))
    if platform.spec.nic is not None:
        found += [("NIC", {}, f"nic.gbps={share * platform.spec.nic.gbps}") for share in (0.5, 0.8)]
    found += [
        (f"peak {dtype}", {}, f"gpu.peak_tflops.{dtype}={tflops / 2}")
        for dtype, tflops in gpu.peak_tflops.items()
        if dtype in ("fp32", "tf32", "fp16", "bf16")
    ]
    return found


@lru_cache(maxsize=256)
def platform_of(name: str, override: str = "") -> Platform:
    return load_platform(name, [override] if override else [])


def step_us(document: dict[str, Any], platform: Platform) -> float:
    workload = parse_workload(document, "random")
    check_runnable(workload, platform)
    return simulate(workload.job(), platform.with_ranks(workload.ranks)).step_us


@pytest.mark.parametrize("group", range(GROUPS))
def test_more_work_or_a_slower_gpu_never_takes_less_time(group: int) -> None:
    fallen = []
    for seed in range(group, CONFIGURATIONS, GROUPS):
        rng = random.Random(seed)
        document = (dlrm if rng.random() < 0.25 else transformer)(rng)
        parallel = document["parallel"]
        ranks, gpu = parallel.get("data") or parallel.get("ranks"), rng.choice(GPUS)
        name = f"{ranks}x{gpu}" if ranks < 16 else f"2x8x{gpu}-{rng.choice((25, 50, 100, 200, 400))}G"
        what, changed, override = rng.choice(changes(document, platform_of(name)))
        try:
            before = step_us(document, platform_of(name))
            after = step_us({**document, **changed}, platform_of(name, override))
        except StepsightError:
            continue  # this GPU does not run it
        if after < (1 - SLACK) * before:
            fallen.append(f"seed {seed} on {name}: {what} {override} {after / before - 1:+.2%}")
    assert not fallen, "\n".join(fallen)


ALONE = ["contention.compute_under_comm=1.0", "contention.comm_under_compute=1.0"]
LLAMA = {"family": "llama", "hidden": 4096, "heads": 32, "ffn": 8192, "batch_per_rank": 13}
GPT = {"family": "gpt2", "hidden": 1024, "heads": 8, "ffn": 2048, "batch_per_rank": 5}
BOUND_BY_COMMUNICATION = [("8xB200-SXM", LLAMA, "fp16"), ("2x8xB200-SXM-50G", GPT, "tf32")]


@pytest.mark.parametrize(("name", "sizes", "precision"), BOUND_BY_COMMUNICATION)
def test_a_slower_host_gains_only_what_overlapped_compute_costs_the_communication(
    name: str, sizes: dict[str, Any], precision: str
) -> None:
    """Kernels that are launched later overlap less with the collectives that bound the step."""
    document = {
        "kind": "transformer", "layers": 2, "vocab": 50257, "sequence": 128, **sizes,
        "training": {"precision": precision, "optimizer": "none"},
        "parallel": {"data": load_platform(name).spec.ranks},
    }  # fmt: skip
    steps = {
        (speed, alone): step_us(document, load_platform(name, [f"host.speed={speed}", *ALONE[: 2 * alone]]))
        for speed in (1.0, 0.7, 0.5)
        for alone in (False, True)
    }
    assert steps[0.7, False] <= steps[1.0, False]
    assert steps[1.0, True] <= steps[0.7, True] * (1 + 1e-9) <= steps[0.5, True] * (1 + 2e-9)
    assert all(steps[speed, False] >= steps[1.0, True] for speed in (0.7, 0.5))
