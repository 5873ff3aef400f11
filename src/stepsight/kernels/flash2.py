"""FlashAttention-2 from first principles: clocks per query-key pair, whole waves of thread blocks.

A multiprocessor spends, for every pair, some clocks on softmax and ``flops / rate`` clocks on the
products; each thread block adds a prologue, and blocks run in waves. The kernel issues Ampere's
matrix instruction on every GPU, so its rate per multiprocessor and clock hardly grows after Ampere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.families import thread_blocks, tiled_pairs
from stepsight.kernels.machine import Machine
from stepsight.kernels.stream_memory import SLOW_MEMORY, cache_speed

C = area("kernels")

HEAD_SIZES = np.array([32.0, 64.0, 96.0, 128.0, 160.0, 192.0, 224.0, 256.0])
"""Head sizes the kernel is compiled for; others are padded to the next."""

MMA_SHARE = C.by_name("MMA_SHARE")
WORKING_BYTES = 10.0
"""What the kernels before and after the backward hold per element at a time: the output and its gradient in
half precision, the gradient of the queries in fp32 and in half."""


@dataclass(frozen=True, slots=True)
class Constants:
    """One direction: FLOPs per pair and head element, and what physics does not say.

    ``softmax_clocks`` per pair, ``block_clocks`` per thread block, ``share`` of the matrix rate,
    ``tail`` waves lost to uneven blocks under a mask, ``bytes_per_element`` of the kernels before and after.
    """

    flops: float
    softmax_clocks: float
    block_clocks: float
    share: float
    tail: float
    start_us: float
    bytes_per_element: float = 0.0


# Fitted on A100: Megatron's operators (no mask, heads of 32 to 256) and the aiconfigurator-core
# table of sglang's FlashAttention (causal, heads of 128).
FORWARD = Constants(4.0, 0.0343, 4432.0, 0.6925, 1.3625, 5.0)
BACKWARD = Constants(10.0, 0.0, 12219.0, 0.4964, 1.3625, 10.0, 38.0)


def matrix_rate(spec: GpuSpec, dtype: str) -> float:
    """FLOPs per multiprocessor and clock that the kernel's matrix instruction can reach.

    Products of fp32 run as three of tf32 each where there are tf32 units (cutlass' "fast fp32").
    """
    peak = mma_share(spec) * spec.peak_flops(dtype)
    if dtype == "fp32" and "tf32" in spec.peak_tflops:
        peak = max(peak, spec.peak_flops("tf32") / 3)
    return peak / (spec.sms * spec.clock_mhz * 1e6)


def mma_share(spec: GpuSpec) -> float:
    """Blackwell's boards with GDDR memory have Ampere's instruction as their own."""
    if spec.architecture == "blackwell" and Machine.of(spec, "fp32").gddr:
        return 1.0
    return MMA_SHARE.get(spec.architecture, 1.0)


def base_us(
    batch: Batch, spec: GpuSpec, *, backward: bool = False, constants: Constants | None = None
) -> FloatArray:
    """The time from first principles."""
    use = constants or (BACKWARD if backward else FORWARD)
    d = batch.dims
    head = padded_head(d["head_dim"])
    blocks = thread_blocks(d, "kv" if backward else "q")
    pairs = tiled_pairs(d) * d["batch"] * d["heads"]
    rate = matrix_rate(spec, batch.dtype) * use.share
    clocks = pairs * (use.softmax_clocks + use.flops * head / rate) + blocks * use.block_clocks
    waves = blocks / spec.sms
    masked = (d["causal"] > 0) | (d["window"] > 0)
    uneven = np.where(masked, 1 + use.tail / waves, np.ceil(waves) / waves)
    elements = d["batch"] * d["heads"] * d["q"] * d["head_dim"]
    streamed = elements * use.bytes_per_element / (spec.memory_gbps * 1e3)
    if spec.l2_gbps > SLOW_MEMORY * spec.memory_gbps:  # the next kernel finds what the last one wrote
        streamed = streamed / cache_speed(batch, spec, elements * WORKING_BYTES)
    compute = clocks / spec.sms * uneven / spec.clock_mhz
    memory = batch.bytes / (spec.memory_gbps * 1e3)
    return np.asarray(use.start_us + streamed + np.maximum(compute, memory))


def columns(batch: Batch, spec: GpuSpec, *, backward: bool = False) -> dict[str, FloatArray]:
    """What the learned correction looks at: the head size and how blocks fill the machine."""
    d = batch.dims
    head = padded_head(d["head_dim"])
    waves = thread_blocks(d, "kv" if backward else "q") / spec.sms
    named = {
        "head": np.log(np.maximum(d["head_dim"], 1.0)),
        "padded_head": np.log(head),
        "odd_head": (head != d["head_dim"]).astype(np.float64),
        "keys": np.log(np.maximum(d["q"] if backward else d["kv"], 1.0)),
        "causal": np.where((d["causal"] > 0) | (d["window"] > 0), 1.0, 0.0),
        "waves": np.log(waves),
        "idle": np.log(np.ceil(waves) / waves),
        "group": np.log(d["heads"] / np.maximum(d["kv_heads"], 1.0)),
    }
    for blocks, size in ((2, 1.0), (1, 0.5), (3, 1.0)):
        share = waves / blocks / size
        named[f"idle_{blocks}_{size:g}"] = np.log(np.ceil(share) / share)
    return named


def padded_head(head_dim: FloatArray) -> FloatArray:
    """The head size the kernel computes with; beyond the largest, multiples of 64."""
    at = np.minimum(np.searchsorted(HEAD_SIZES, head_dim), len(HEAD_SIZES) - 1)
    return np.asarray(np.where(head_dim > HEAD_SIZES[-1], np.ceil(head_dim / 64) * 64, HEAD_SIZES[at]))
