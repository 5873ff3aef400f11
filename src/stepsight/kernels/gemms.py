"""Products on tensor cores as training runs them: what they take against the tables of serving GEMMs.

The tables hold forward products in one memory layout whose rows are multiples of 16 bytes. A row length that
is not forces the library onto kernels that load a few bytes at a time instead of 16; their names say so
("align1"). Training adds products with other layouts (the gradients of inputs and of weights) and batched
ones. The correction is learned over the forward product's sizes, so the two gradients of one layer, which
were measured together, share one factor. Batched products are corrected against first principles (`tiles`),
single ones against the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepsight.constants import area
from stepsight.estimate import Estimates, FloatArray, IntArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch, put_together
from stepsight.kernels.conv.products import faster
from stepsight.kernels.conv.tiled import in_tiles
from stepsight.kernels.fitted import Fitted
from stepsight.kernels.learned.residual import Residual, nearest
from stepsight.kernels.machine import same_board
from stepsight.kernels.roofline import BoolArray, peak_flops, roofline, speed_of_light_us
from stepsight.kernels.streams import HALF
from stepsight.kernels.tiles import BATCHED_SPREAD, batched_us
from stepsight.program.job import PLAIN
from stepsight.program.variants import Kind, Role

C = area("kernels")
FP8_OVER_BF16 = C.by_name("FP8_OVER_BF16")

ROW_BYTES = 16


def is_tensor_core(dtype: str) -> bool:
    return dtype in ("tf32", "fp16", "bf16")


def with_narrow_loads(batch: Batch, spec: GpuSpec, answer: Estimates) -> Estimates:
    """The answers for GEMMs on tensor cores, longer where rows are not aligned and for short ones in tf32."""
    factor = np.ones(len(batch))
    if batch.dtype == "tf32":
        factor += C.SMALL_TF32 / (1 + speed_of_light_us(batch, spec) / C.SHORT_TF32_US)
    unaligned = off_boundaries(batch)
    if unaligned.any():
        more = C.NARROW_HALF_LOADS if batch.dtype in HALF else C.NARROW_LOADS
        # Narrow loads overlap with memory that is slower still.
        factor *= np.where(unaligned, 1 + more * np.minimum(1.0, _intensity(batch, spec)), 1.0)
    spread: FloatArray = np.where(factor > 1, np.hypot(answer.spread, C.UNALIGNED_SPREAD), answer.spread)
    return Estimates(answer.time_us * factor, answer.source, spread, answer.notes)


def off_boundaries(batch: Batch) -> npt.NDArray[np.bool_]:
    """Products with a matrix whose rows do not start on 16-byte boundaries.

    Rows are n or k long, of a weight's gradient m or n: its k are the samples, one row each.
    """
    step = ROW_BYTES / batch.element_bytes
    m, n, k = (np.floor(batch.dims[key] / step) * step != batch.dims[key] for key in ("m", "n", "k"))
    return np.asarray(n | np.where(batch.where(lambda kind: kind.role is Role.WGRAD), m, k))


def never_longer_than(
    batch: Batch, spec: GpuSpec, answer: Estimates, full: Callable[[Batch], FloatArray]
) -> Estimates:
    """The answers, none above the time of the same product in fp32 (``full``).

    Only answers above the fp32 speed of light can be, so only those are asked for again; below
    `CLEAR_GEMM_US` both are a launch and a few round trips to memory.
    """
    in_full = replace(batch, dtype="fp32", positions=np.arange(len(batch)))
    possible = answer.time_us > in_full.flops / (spec.peak_flops("fp32") / 1e6)
    doubted = np.nonzero(possible & (answer.time_us > C.CLEAR_GEMM_US))[0]
    if not len(doubted):
        return answer
    time_us = answer.time_us.copy()
    again = replace(in_full.take(doubted), positions=np.arange(len(doubted)))
    time_us[doubted] = np.minimum(time_us[doubted], full(again))
    return Estimates(time_us, answer.source, answer.spread, answer.notes)


def _intensity(batch: Batch, spec: GpuSpec) -> FloatArray:
    """Time of the arithmetic at peak over time of the traffic at full bandwidth."""
    arithmetic = batch.flops / peak_flops(batch, spec) * 1e6
    return np.asarray(arithmetic / (batch.bytes / (spec.memory_gbps * 1e3)))


FORWARD, BACKWARD, BATCHED, BATCHED_BACKWARD = "forward", "backward", "batched", "batched_backward"
TILES = ((64, 64), (128, 128), (256, 128), (128, 256))
"""Thread-block tiles of cuBLAS' half-precision kernels."""
RANGED = ("m", "n", "k", "batch")
"""The columns whose fitted range decides how far the correction is trusted."""


def forward_sizes(batch: Batch) -> dict[str, FloatArray]:
    """Sizes of the forward product that each kernel belongs to; a gradient has them in other roles."""
    d = batch.dims
    m, n, k = (np.maximum(d[key], 1.0) for key in ("m", "n", "k"))
    inputs = batch.where(lambda kind: kind.role is Role.DGRAD)
    weights = batch.where(lambda kind: kind.role is Role.WGRAD)
    return {
        "batch": np.maximum(d["batch"], 1.0),
        "m": np.where(weights, k, m),
        "n": np.where(inputs, k, np.where(weights, m, n)),
        "k": np.where(inputs | weights, n, k),
    }


def columns(sizes: Mapping[str, FloatArray], added: FloatArray, spec: GpuSpec) -> dict[str, FloatArray]:
    """Sizes, alignment, and for every tile its padding and its last, partly idle wave.

    ``added``: 1 where the product is added to a third matrix (baddbmm) or a bias has a gradient.
    """
    b, m, n, k = (sizes[key] for key in ("batch", "m", "n", "k"))
    named = {
        "batch": np.log(b), "m": np.log(m), "n": np.log(n), "k": np.log(k), "added": added,
        "outputs": np.log(b * m * n), "work": np.log(b * m * n * k),
        "intensity": -np.log(1 / m + 1 / n + 1 / k),
    }  # fmt: skip
    for key, size in (("m", m), ("n", n), ("k", k)):
        whole = size.astype(np.int64)
        named[f"align_{key}"] = np.log2(np.minimum(whole & -whole, 256).astype(np.float64))
    for rows, cols in TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / cols)
        waves = tiles * b / spec.sms
        idle = np.log(np.ceil(waves) / waves)
        named[f"idle_{rows}x{cols}"] = idle
        named[f"slow_{rows}x{cols}"] = idle + np.log(tiles * rows * cols / (m * n))
    return named


def apply_training_correction(
    batch: Batch, spec: GpuSpec, answer: Estimates, residuals: Sequence[Residual], *, own_table: bool
) -> Estimates:
    """Answers from the tables, corrected by what training took on this chip (gradients: on the nearest).

    ``own_table``: the answer comes from a table of this very board, so only what sets gradients apart from
    forward products applies to it.
    """
    factor, spread = np.ones(len(batch)), answer.spread.copy()
    for variant, mine in _by_variant(batch)[0]:
        residual = nearest(residuals, "gemm", variant, spec)
        if residual is None:
            continue
        measured = same_board(residual.gpu, spec) or (residual.same_chip(spec) and not own_table)
        if not measured and variant != BACKWARD:
            continue
        part = batch if len(mine) == len(batch) else batch.take(mine)
        named = columns(forward_sizes(part), np.zeros(len(part)), spec)
        logs = np.log(residual.factor(named))
        if not measured:
            forward = nearest(residuals, "gemm", FORWARD, spec)
            logs -= forward.trees.bias if forward else 0.0
        trust = np.exp(-residual.outside(named, RANGED) / C.CORRECTION_REACH)
        factor[mine] = np.exp(logs * trust)
        apart = residual.spread if measured else np.hypot(residual.spread, C.OTHER_CHIP_SPREAD)
        spread[mine] = np.hypot(apart * trust, answer.spread[mine] * (1 - trust * measured))
    return Estimates(answer.time_us * factor, answer.source, spread, answer.notes)


def batched_estimates(batch: Batch, spec: GpuSpec, share: float, residuals: Sequence[Residual]) -> Estimates:
    """Batched products: first principles, corrected where they were measured on this chip.

    ``share``: what the board keeps up of its tensor cores' peak.
    """
    time_us = batched_us(batch, spec, share)
    source = np.full(len(batch), int(Source.TRANSFERRED))
    spread = np.full(len(batch), BATCHED_SPREAD)
    notes: dict[int, str] = {}
    groups, added = _by_variant(batch)
    for variant, mine in groups:
        residual = nearest(residuals, "gemm", variant, spec)
        if residual is None or not residual.same_chip(spec):
            notes |= dict.fromkeys(mine.tolist(), "batched GEMMs of A100, scaled to this GPU")
            continue
        part = batch if len(mine) == len(batch) else batch.take(mine)
        named = columns(forward_sizes(part), added[mine], spec)
        trust = np.exp(-residual.outside(named, RANGED) / C.CORRECTION_REACH)
        time_us[mine] *= np.exp(np.log(residual.factor(named)) * trust)
        spread[mine] = np.hypot(residual.spread * trust, BATCHED_SPREAD * (1 - trust))
        source[mine] = int(Source.LEARNED)
    return Estimates(time_us, source, spread, notes)


def _by_variant(batch: Batch) -> tuple[list[tuple[str, IntArray]], FloatArray]:
    """The products that each correction is for, and 1 for those added to a third matrix."""
    gradient = batch.where(lambda kind: kind.role in (Role.DGRAD, Role.WGRAD))
    batched = batch.dims["batch"] > 1
    groups = (
        (BACKWARD, gradient & ~batched), (BATCHED, ~gradient & batched),
        (BATCHED_BACKWARD, gradient & batched), (FORWARD, ~gradient & ~batched),
    )  # fmt: skip
    found = [(variant, np.nonzero(mine)[0]) for variant, mine in groups if mine.any()]
    return found, batch.where(lambda kind: kind.variant == "baddbmm").astype(np.float64)


def _in_tiles_outside(tabled: Estimates, faster_one: Estimates, inside: float) -> Estimates:
    """Another chip's table where it reaches; an e-fold outside it (rows of image models), whole tiles on this
    chip's tensor cores if they are faster. ``inside``: the table's spread, which grows outside."""
    far = np.sqrt(np.maximum(tabled.spread**2 - inside**2, 0.0)) / C.OUTSIDE_TABLE_SPREAD
    share = np.minimum(far, 1.0)
    return replace(tabled, time_us=tabled.time_us ** (1 - share) * faster_one.time_us**share)


def without_quantising(batch: Batch, spec: GpuSpec, answer: Estimates, in_bf16: Estimates) -> Estimates:
    """fp8 products alone: the serving tables' times hold the conversion of their inputs, too.

    A product takes its share of the bf16 one, or what writing its bf16 result and reading its inputs takes.
    """
    d = batch.dims
    moved = d["batch"] * (d["m"] * d["k"] + d["k"] * d["n"] + 2 * d["m"] * d["n"])
    memory_us = moved / (spec.memory_gbps * 1e3) / C.FP8_BANDWIDTH
    share = FP8_OVER_BF16.get(spec.architecture, FP8_OVER_BF16["default"])
    alone = np.maximum(in_bf16.time_us * share, memory_us)
    shorter = alone < answer.time_us
    spread: FloatArray = np.where(shorter, np.hypot(in_bf16.spread, C.FP8_SPREAD), answer.spread)
    return Estimates(np.minimum(alone, answer.time_us), answer.source, spread, answer.notes)


_SINGLE = {Kind("bmm"): PLAIN}


@dataclass(frozen=True, slots=True)
class Products:
    """GEMMs. In half precision batched ones go by first principles, all others by the learned tables.

    ``of_images``: those that convolutions are made of. Boards of one chip run their products at their own
    clocks; of convolutions traces show no such gain, libraries choose other algorithms from board to board.
    """

    fitted: Fitted
    of_images: bool = False

    def handles(self, batch: Batch) -> BoolArray:
        return np.full(len(batch), batch.family == "gemm")

    def estimate(self, batch: Batch) -> Estimates:
        half = batch.dtype in HALF
        many = batch.dims["batch"] > 1
        if not half:  # the fp32 tables hold products that were called batched
            many = many | batch.where(lambda kind: kind.variant == "bmm")
        parts = []
        for variant, rows in (("bmm", np.nonzero(many)[0]), ("linear", np.nonzero(~many)[0])):
            if len(rows):
                part = batch if len(rows) == len(batch) else batch.take(rows)
                if half and variant == "linear":  # a batch of one is a single product
                    part = replace(part, kinds=[_SINGLE.get(kind, kind) for kind in part.kinds])
                batched = half and variant == "bmm"
                parts.append((rows, self._batched(part) if batched else self._tabled(part, variant)))
        return put_together(parts, len(batch))

    def _batched(self, batch: Batch) -> Estimates:
        f = self.fitted
        answer = batched_estimates(batch, f.spec, f.tensor_share(batch.dtype), f.residuals)
        answer = with_narrow_loads(batch, f.spec, answer)
        return never_longer_than(batch, f.spec, answer, self._time_us)

    def _tabled(self, batch: Batch, variant: str) -> Estimates:
        f = self.fitted
        chosen = f.choice("gemm", batch.dtype, variant, at_own_clock=not self.of_images)
        if chosen is None:
            return roofline(batch, f.spec)
        answer = f.learned(batch, chosen)
        if batch.dtype in HALF and not self.of_images and chosen.source is Source.TRANSFERRED:
            answer = _in_tiles_outside(answer, faster(answer, in_tiles(batch, f.spec)), chosen.spread)
        if is_tensor_core(batch.dtype):
            answer = with_narrow_loads(batch, f.spec, answer)
            if batch.dtype in HALF and f.residuals:
                own_table = same_board(chosen.models[0].machine.name, f.spec)
                answer = apply_training_correction(batch, f.spec, answer, f.residuals, own_table=own_table)
            answer = never_longer_than(batch, f.spec, answer, self._time_us)
        if batch.dtype == "fp8" and "fp8" in f.spec.peak_tflops:
            in_bf16 = self.estimate(replace(batch, dtype="bf16"))
            answer = without_quantising(batch, f.spec, answer, in_bf16)
        return answer

    def _time_us(self, batch: Batch) -> FloatArray:
        return self.estimate(batch).time_us
