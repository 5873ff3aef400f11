"""What a learned efficiency looks at: shapes against tiles, waves, alignment and machine balance.

Each feature set maps a family's sizes to named columns. The columns are relative to the
machine (waves over its multiprocessors, intensity over its balance), so trees fitted on one
GPU can be asked about another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.kernels.columns import Batch
from stepsight.kernels.families import Dims, conv_output
from stepsight.kernels.machine import Machine

C = area("kernels")

FeatureSet = Callable[[Dims, FloatArray, Machine], dict[str, FloatArray]]

TILES = (
    (32, 32), (64, 32), (32, 64), (64, 64), (128, 32), (32, 128), (128, 64), (64, 128),
    (128, 128), (256, 64), (64, 256), (256, 128), (128, 256),
)  # fmt: skip
"""Thread-block tiles that cuBLAS and CUTLASS choose among."""


def gemm_features(d: Dims, element_bytes: FloatArray, machine: Machine) -> dict[str, FloatArray]:
    """Sizes, intensity, alignment; for every tile its padding waste and its last, partly idle wave."""
    b, m, n, k = (np.maximum(d[key], 1.0).astype(np.float32) for key in ("batch", "m", "n", "k"))
    ln_m, ln_n, ln_k, ln_b = np.log(m), np.log(n), np.log(k), np.log(b)
    ln_mn = ln_m + ln_n
    ln_arithmetic = ln_b + ln_mn + ln_k - np.float32(np.log(machine.tflops * 5e5))
    moved = b * (m * k + n * k + m * n) * element_bytes.astype(np.float32)
    ln_traffic = np.log(moved) - np.float32(np.log(machine.memory_gbps * 1e3))
    columns = {
        "batch": ln_b,
        "m": ln_m,
        "n": ln_n,
        "k": ln_k,
        "light": np.maximum(ln_arithmetic, ln_traffic),
        "intensity": ln_arithmetic - ln_traffic,
        "cache": ln_traffic + np.float32(np.log(machine.memory_gbps / machine.l2_mb)),
        "outputs": ln_b + ln_mn,
        "aspect": ln_m - ln_n,
        "short": np.minimum(ln_m, ln_n),
        "long": np.maximum(ln_m, ln_n),
        "depth": ln_k - ln_mn / 2,
        "left": ln_b + ln_m + ln_k,
        "right": ln_b + ln_n + ln_k,
        "deep_m": ln_k - ln_m,
        "deep_n": ln_k - ln_n,
        "align_m": _alignment(m),
        "align_n": _alignment(n),
        "align_k": _alignment(k),
        "pad_k": np.log(np.ceil(k / 32) * 32) - ln_k,
    }
    blocks = {side: (np.ceil(m / side), np.ceil(n / side)) for side in (32, 64, 128, 256)}
    best = None
    for rows, cols in TILES:
        padded = blocks[rows][0] * blocks[cols][1]
        waves = padded * b * np.float32(1 / machine.sms)
        ln_waves = np.log(waves)
        waste = ln_waves + np.float32(np.log(rows * cols * machine.sms)) - ln_mn - ln_b
        idle = np.log(np.ceil(waves)) - ln_waves
        slow = waste + idle
        best = slow if best is None else np.minimum(best, slow)
        columns[f"waste_{rows}x{cols}"] = waste
        columns[f"slow_{rows}x{cols}"] = slow
        if rows == cols:
            columns[f"waves_{rows}"] = ln_waves
            columns[f"idle_{rows}"] = idle
    columns["slow_best"] = np.asarray(best)
    return columns


def linear_features(d: Dims, element_bytes: FloatArray, machine: Machine) -> dict[str, FloatArray]:
    """Those of a product, and how much memory lies between the rows that are read at a time."""
    columns = gemm_features(d, element_bytes, machine)
    columns["span"] = np.log(span_bytes(d, element_bytes, machine))
    return columns


def attention_features(d: Dims, element_bytes: FloatArray, machine: Machine) -> dict[str, FloatArray]:
    """Sequence, heads and head size; how full the last wave of query tiles is."""
    b, heads, kv_heads, q, kv, size = (
        np.maximum(d[key], 1.0) for key in ("batch", "heads", "kv_heads", "q", "kv", "head_dim")
    )
    arithmetic = 4 * b * heads * q * kv * size / (machine.tflops * 1e6)
    arithmetic = np.where(d["causal"] > 0, arithmetic / 2, arithmetic)
    traffic = element_bytes * b * size * 2 * (heads * q + kv_heads * kv) / (machine.memory_gbps * 1e3)
    columns = {
        "batch": np.log(b),
        "heads": np.log(heads),
        "group": np.log(heads / kv_heads),
        "q": np.log(q),
        "kv": np.log(kv),
        "head_dim": np.log(size),
        "causal": d["causal"],
        "sequences": np.log(b * heads),
        "light": np.log(np.maximum(arithmetic, traffic)),
        "intensity": np.log(arithmetic / traffic),
        "arithmetic": np.log(arithmetic),
        "traffic": np.log(traffic),
        "cache": np.log(traffic * machine.memory_gbps / machine.l2_mb),
    }
    for rows in (64, 128, 256):
        tiles = np.ceil(q / rows)
        waves = tiles * b * heads / machine.sms
        columns[f"waves_{rows}"] = np.log(waves)
        columns[f"idle_{rows}"] = np.log(np.ceil(waves) / waves)
        columns[f"slow_{rows}"] = np.log(tiles * rows / q * np.ceil(waves) / waves)
    packed = np.ceil(q * heads / kv_heads / 128) * b * kv_heads / machine.sms
    columns["waves_packed"] = np.log(packed)
    columns["idle_packed"] = np.log(np.ceil(packed) / packed)
    return columns


def conv_features(d: Dims, element_bytes: FloatArray, machine: Machine) -> dict[str, FloatArray]:
    """The convolution as an implicit GEMM, plus how Winograd's 2×2 and 4×4 tiles fit the image."""
    high, wide = conv_output(d)
    as_gemm = {
        "batch": np.ones_like(high),
        "m": d["batch"] * high * wide,
        "n": d["c_out"],
        "k": d["c_in"] / np.maximum(d["groups"], 1.0) * d["kh"] * d["kw"],
    }
    columns = gemm_features(as_gemm, element_bytes, machine)
    columns["batch"] = np.log(np.maximum(d["batch"], 1.0))
    columns["c_in"] = np.log(np.maximum(d["c_in"], 1.0))
    columns["window"] = np.log(d["kh"] * d["kw"])
    columns["stride"] = d["stride"]
    columns["image"] = np.log(np.maximum(d["h"], 1.0))
    columns["align_c_in"] = _alignment(d["c_in"])
    for side in (2, 4):
        tiles = np.ceil(high / side) * np.ceil(wide / side)
        columns[f"winograd_{side}"] = np.log(tiles * side**2 / (high * wide))
        columns[f"winograd_tiles_{side}"] = np.log(d["batch"] * tiles)
    return columns


def row_features(d: Dims, element_bytes: FloatArray, machine: Machine) -> dict[str, FloatArray]:
    """Rows and columns of a row-wise kernel: how its threads cover a row, how rows fill the machine."""
    rows, cols = np.maximum(d["rows"], 1.0), np.maximum(d["cols"], 1.0)
    traffic = element_bytes * rows * cols / (machine.memory_gbps * 1e3)
    columns = {
        "rows": np.log(rows),
        "cols": np.log(cols),
        "light": np.log(traffic),
        "align": _alignment(cols),
        "power": np.ceil(np.log2(cols)),
        "waste": np.ceil(np.log2(cols)) - np.log2(cols),
        "cache": np.log(traffic * machine.memory_gbps / machine.l2_mb),
        "row_waves": np.log(rows / machine.sms),
    }
    for step in (128, 256, 512, 1024):
        columns[f"waste_{step}"] = np.log(np.ceil(cols / step) * step / cols)
        columns[f"steps_{step}"] = np.log(np.ceil(cols / step))
    return columns


FEATURES: Mapping[str, FeatureSet] = {
    "gemm": gemm_features,
    "linear": linear_features,
    "attention": attention_features,
    "conv": conv_features,
    "rows": row_features,
}


def _alignment(size: npt.NDArray[np.floating[Any]]) -> FloatArray:
    """log2 of the largest power of two up to 32 that divides the size."""
    whole = np.maximum(size, 1.0).astype(np.int64)
    power: FloatArray = np.log2(np.minimum(whole & -whole, 32).astype(np.float64))
    return power


TILE = 128
"""Side of the output tiles, one on a multiprocessor at a time; the library counts them along m first."""
SHARING = 2
"""Multiprocessors that look addresses up together."""
REACH_BYTES = C.by_name("TLB_REACH_BYTES")


def look_up_stretch(batch: Batch, machine: Machine) -> FloatArray:
    """What multiplies the arithmetic of each product for its addresses that are out of reach."""
    reach = REACH_BYTES.get(machine.architecture)
    if reach is None:
        return np.ones(len(batch))
    found = np.minimum(1.0, (reach / span_bytes(batch.dims, batch.element_bytes, machine)) ** C.TLB_SOFTNESS)
    return np.asarray(1 + C.TLB_WAITING * (1 - found))


def span_bytes(d: Dims, element_bytes: FloatArray, machine: Machine) -> FloatArray:
    """From the first to the last byte of the rows that tiles which share a buffer read at a time."""
    m, n, k = (np.maximum(d[key], 1.0) for key in ("m", "n", "k"))
    tiles = machine.sms / SHARING
    left = np.minimum(m, tiles * TILE)
    right = np.minimum(n, np.ceil(tiles / np.ceil(m / TILE)) * TILE)
    return np.asarray((left + right) * k * element_bytes)
