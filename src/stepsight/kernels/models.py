"""The registry of kernel models of one GPU: kernels in, times with their sources out."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from stepsight.estimate import Estimates, FloatArray, Source
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.attention.estimates import FAMILIES as ATTENTION_FAMILIES
from stepsight.kernels.attention.estimates import attention_estimates, versions
from stepsight.kernels.attention.versions import BACKWARD_OVER_FORWARD as TABLED
from stepsight.kernels.changed_gpu import as_chip, catalogue_gpu, rescale_by_roofline
from stepsight.kernels.columns import Batch, batches
from stepsight.kernels.conv.algorithms import beyond_tables, fastest_estimates
from stepsight.kernels.conv.grouped import grouped_estimates, is_grouped
from stepsight.kernels.conv.layout import has_tensor_cores, with_copies
from stepsight.kernels.conv.plain_engine import engine_estimates, is_plain_engine
from stepsight.kernels.conv.pointwise import (
    CONVOLUTIONS,
    as_convolution,
    as_product,
    faster,
    is_pointwise,
    turned,
)
from stepsight.kernels.conv.tiled import tiled_estimates
from stepsight.kernels.learned.artefacts import SHIPPED, shipped_models
from stepsight.kernels.learned.boards import FILE as BOARDS_FILE
from stepsight.kernels.learned.boards import Boards, load_boards
from stepsight.kernels.learned.model import LearnedModel
from stepsight.kernels.learned.residual import RESIDUALS_FILE, Residual, cached_residuals, nearest
from stepsight.kernels.learned.transfer import NO_BOARDS, ROW_FAMILIES, Choice, choose
from stepsight.kernels.machine import Machine, same_board
from stepsight.kernels.measured import FILE as MEASURED_FILE
from stepsight.kernels.measured import MeasuredKernels
from stepsight.kernels.notes import beyond_shapes, joined
from stepsight.kernels.parts import put_together, scatter, variants
from stepsight.kernels.roofline import roofline
from stepsight.kernels.stream_costs import STREAMS, plain_name
from stepsight.kernels.streams import (
    HALF,
    HALF_VARIANT,
    Streamed,
    cached_streams,
    corrected_stream,
    measured_stream,
    stream_estimates,
)
from stepsight.kernels.tensor_cores import is_tensor_core, never_longer_than, with_narrow_loads
from stepsight.kernels.tiles import tiled_us
from stepsight.kernels.training_gemms import apply_training_correction, batched_estimates, without_quantising
from stepsight.kernels.turns import turns
from stepsight.program.job import Kernel

if TYPE_CHECKING:
    from stepsight.kernels.embedding.cpu.measured import MeasuredLookups

BoolArray = np.typing.NDArray[np.bool_]

EMBEDDING_FAMILIES = frozenset({"embedding", "embedding_backward"})
STREAMS_FILE = "streams.json"
OUTSIDE_SPREAD = 0.04
"""Spread added per e-fold outside the fitted range: large fp32 GEMMs timed by fits on small ones."""
MOST_OUTSIDE_SPREAD = 0.4
FAR_OUTSIDE = 0.7
"""E-folds outside the fitted range (a factor of two in one size) from which an estimate says so."""


LINE_BYTES = 128
"""A cache line."""
OTHER_SOURCE_SPREAD = 0.1
"""How far like norms of two sources on one board lie apart (vector_fp32 and nlp_ops_fp32: V100, T4, P100,
A100-40G)."""

MEASURED_POINTWISE = frozenset({"", "add", "elementwise"})
OTHER_OPERATOR_SPREAD = 0.12
"""Added to what residual additions scatter by, for other element-wise operators in half precision
(public traces: H100 and A100, 361 plain ones of all dtypes)."""

ROWS_AT_ONCE = 32_768
"""Kernels timed in one turn."""
MOST_SORTED = 15_000
"""Beyond this many rows, finding the alike ones costs more than timing them."""


class Estimator(Protocol):
    """Times kernels of some families by other means than columns of sizes."""

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates: ...


@dataclass(slots=True)
class KernelModels:
    """Kernel times on one GPU: device time only, without launch or host.

    ``measured`` are the models of a calibrated platform, which then answer for all but lookups.
    ``known`` are those of the catalogue's GPU where this is one with changed figures (`changed_gpu`);
    ``given`` is then that GPU as it was given.
    """

    spec: GpuSpec
    shipped: tuple[LearnedModel, ...] = ()
    streams: tuple[Streamed, ...] = ()
    measured: Estimator | None = None
    residuals: tuple[Residual, ...] = ()
    boards: Boards = NO_BOARDS
    known: KernelModels | None = None
    given: GpuSpec | None = None
    _embedding: Estimator | None = field(default=None, repr=False)
    _choices: dict[tuple[str, str, str], Choice | None] = field(default_factory=dict, repr=False)

    @classmethod
    def for_gpu(cls, spec: GpuSpec) -> KernelModels:
        """The shipped models for this GPU, or its relatives' carried over by the specification."""
        catalogued = catalogue_gpu(spec)
        if catalogued is None:
            return cls._shipped(spec)
        return replace(
            cls._shipped(as_chip(spec, catalogued)), known=cls._shipped(catalogued), given=spec,
        )  # fmt: skip

    @classmethod
    def _shipped(cls, spec: GpuSpec) -> KernelModels:
        return cls(
            spec,
            shipped_models(),
            cached_streams(SHIPPED / STREAMS_FILE),
            residuals=cached_residuals(SHIPPED / RESIDUALS_FILE),
            boards=load_boards(SHIPPED / BOARDS_FILE),
        )

    @classmethod
    def load(cls, folder: Path, spec: GpuSpec) -> KernelModels:
        """The models that calibration left in a platform's folder; the shipped ones where it has none."""
        models = cls.for_gpu(spec)
        if (folder / "kernels" / MEASURED_FILE).is_file():
            models.measured = MeasuredKernels.load(folder)
        models._embedding = _lookups(folder)
        return models

    def without_residuals(self) -> KernelModels:
        """The same models without the half-precision corrections: what those are fitted on top of."""
        return KernelModels(self.spec, self.shipped, self.streams, self.measured, boards=self.boards)

    def estimate(self, kernels: Sequence[Kernel]) -> Estimates:
        """Times of many kernels at once, in the order given."""
        parts: list[tuple[Batch, Estimates]] = []
        for batch in batches(kernels):
            if batch.family in EMBEDDING_FAMILIES:
                parts.append((batch, self._embedding_model().estimate([kernels[i] for i in batch.positions])))
            elif self.measured is not None:
                parts.append((batch, self.measured.estimate([kernels[i] for i in batch.positions])))
            else:
                parts.append((batch, self.estimate_batch(batch)))
        found = scatter(parts, len(kernels))
        speed = self.spec.speed
        return found if speed == 1.0 else replace(found, time_us=found.time_us / speed)

    def estimate_batch(self, batch: Batch, stacks: Sequence[str] | None = None) -> Estimates:
        """Times of one family's kernels given as columns (no embedding families).

        ``stacks`` names the software stack each row ran on, where that is known.
        """
        if len(batch) == 0:
            return Estimates.uniform(np.zeros(0), Source.DEFAULT, 0.0)
        if len(batch) > ROWS_AT_ONCE:
            return self._in_turns(batch, stacks)
        if batch.family in ATTENTION_FAMILIES:
            return self._attention(batch, stacks)
        if batch.family in CONVOLUTIONS:
            kinds = self._kinds(batch)
            if any(which.any() for which in kinds):
                return self._sorted_convolutions(batch, *kinds)
        if self.known is not None and batch.known:
            answer = self.known.estimate_batch(batch, stacks)
            return rescale_by_roofline(answer, batch, self.spec, self.known.spec)
        parts = []
        for variant, rows in variants(batch):
            if not len(rows):
                continue
            part = batch if len(rows) == len(batch) else batch.take(rows)
            corrected = self._corrected(part, variant)
            if corrected is None and batch.family in ROW_FAMILIES:
                parts += [(rows[at], answer) for at, answer in self._rows(part)]
                continue
            if corrected is None and variant == "bmm" and batch.dtype in HALF and stacks is None:
                parts += [(rows[at], answer) for at, answer in self._batched(part)]
                continue
            chosen = None if corrected is not None else self._choice(batch.family, batch.dtype, variant)
            if corrected is not None:
                answer = corrected
            elif chosen is not None:
                stack = None if stacks is None else [stacks[i] for i in rows]
                answer = self._distinct(part, chosen) if stack is None else self._learned(part, chosen, stack)
                if batch.family == "gemm" and is_tensor_core(batch.dtype):
                    own = chosen.models[0].dtype == batch.dtype
                    answer = with_narrow_loads(part, self.spec, answer, own_dtype=own)
                    if batch.dtype in HALF and self.residuals and stacks is None:
                        own_table = same_board(chosen.models[0].machine.name, self.spec)
                        answer = apply_training_correction(
                            part, self.spec, answer, self.residuals, own_table=own_table
                        )
                    answer = never_longer_than(part, self.spec, answer, self._full_precision)
                if batch.family == "gemm" and batch.dtype == "fp8" and stacks is None:
                    answer = self._fp8(part, answer)
            elif batch.family in STREAMS:
                fitted, exact = self._stream()
                answer = stream_estimates(part, self.spec, fitted, exact)
            elif batch.family in CONVOLUTIONS and has_tensor_cores(batch.dtype, self.spec):
                answer = tiled_estimates(part, self.spec)
            else:
                answer = roofline(part, self.spec)
            parts.append((rows, answer))
        return put_together(parts, len(batch))

    def _batched(self, batch: Batch) -> Iterator[tuple[np.typing.NDArray[np.int64], Estimates]]:
        """Half-precision products called batched; those of a batch of one are single ones."""
        many = batch.dims["batch"] > 1
        single, several = np.nonzero(~many)[0], np.nonzero(many)[0]
        if len(single):
            names = ["" if name == "bmm" else name for name in batch.take(single).names]
            yield single, self.estimate_batch(replace(batch.take(single), names=names))
        if len(several):
            part = batch.take(several)
            share = self.boards.share(Machine.of(self.spec, batch.dtype), batch.dtype, "bmm")
            answer = batched_estimates(part, self.spec, share, self.residuals)
            answer = with_narrow_loads(part, self.spec, answer, own_dtype=True)
            yield several, never_longer_than(part, self.spec, answer, self._full_precision)

    def _fp8(self, batch: Batch, answer: Estimates) -> Estimates:
        if "fp8" not in self.spec.peak_tflops:
            return answer
        in_bf16 = self.estimate_batch(Batch("gemm", "bf16", batch.dims, batch.names, batch.positions))
        return without_quantising(batch, self.spec, answer, in_bf16)

    def _rows(self, batch: Batch) -> Iterator[tuple[np.typing.NDArray[np.int64], Estimates]]:
        """fp32 softmax and layer norm. The tables hold arbitrary row lengths; rows that begin on cache lines,
        as those of models do, go by their costs, except layer norms on a board with a table of its own."""
        chosen = self._choice(batch.family, batch.dtype, "")
        lines = batch.dims["cols"] * batch.element_bytes % LINE_BYTES == 0
        if chosen is None:
            lines = np.ones(len(batch), dtype=bool)
        elif batch.family == "layer_norm" and chosen.models[0].machine.name == self.spec.name:
            lines = np.zeros(len(batch), dtype=bool)
        fitted, exact = self._stream()
        whole, odd = np.nonzero(lines)[0], np.nonzero(~lines)[0]
        if len(whole):
            yield whole, stream_estimates(batch.take(whole), self.spec, fitted, exact)
        if len(odd) and chosen is not None:
            learned = self._distinct(batch.take(odd), chosen)
            spread = np.hypot(learned.spread, OTHER_SOURCE_SPREAD)
            yield odd, Estimates(learned.time_us, learned.source, spread, learned.notes)

    def _in_turns(self, batch: Batch, stacks: Sequence[str] | None) -> Estimates:
        """Many kernels, some alike ones at a time."""
        parts = []
        for rows, part in batch.parts(turns(batch.dims, len(batch), ROWS_AT_ONCE)):
            stack = None if stacks is None else [stacks[i] for i in rows.tolist()]
            parts.append((rows, self.estimate_batch(part, stack)))
        return put_together(parts, len(batch))

    def _kinds(self, batch: Batch) -> tuple[BoolArray, BoolArray, BoolArray, BoolArray]:
        """Which convolutions are of cuDNN's plain engine, have groups, are plain products, or (without tensor
        cores) are in no table."""
        engine = is_plain_engine(batch)
        grouped, plain = is_grouped(batch) & ~engine, is_pointwise(batch) & ~engine
        known = has_tensor_cores(batch.dtype, self.spec) or batch.dtype == "fp64"
        beyond = np.zeros(len(batch), dtype=bool)
        if not known:
            beyond = beyond_tables(batch) & ~(engine | grouped | plain)
        return engine, grouped, plain, beyond

    def _sorted_convolutions(
        self, batch: Batch, engine: BoolArray, grouped: BoolArray, plain: BoolArray, beyond: BoolArray
    ) -> Estimates:
        """Convolutions of which some are not timed by tables or tiles."""
        parts: list[tuple[np.typing.NDArray[np.int64], Estimates]] = []
        kinds = (engine, grouped, plain, beyond, ~(engine | grouped | plain | beyond))
        engines, groups, products, outside, rest = (np.nonzero(w)[0] for w in kinds)
        if len(engines):
            parts.append((engines, engine_estimates(batch.take(engines), self.spec)))
        if len(groups):
            parts.append((groups, grouped_estimates(batch.take(groups), self.spec)))
        if len(products):
            taken = batch.take(products)
            product = as_convolution(self._over_pixels(taken))
            parts.append((products, with_copies(product, taken, self.spec)))
        if len(outside):
            answer = fastest_estimates(batch.take(outside), self.spec, self.estimate_batch)
            parts.append((outside, answer))
        if len(rest):
            parts.append((rest, self.estimate_batch(batch.take(rest))))
        return put_together(parts, len(batch))

    def _over_pixels(self, batch: Batch) -> Estimates:
        """Pointwise convolutions as products. Where images lie by channel, libraries have kernels with pixels
        as rows and with pixels as columns; tensor cores read images by pixel, which makes pixels the rows."""
        product = as_product(batch)
        answer = self.estimate_batch(product)
        if has_tensor_cores(batch.dtype, self.spec) or batch.family == "conv_wgrad":
            return answer
        return faster(answer, self.estimate_batch(turned(product)))

    def _full_precision(self, batch: Batch) -> FloatArray:
        return self.estimate_batch(batch).time_us

    def _corrected(self, batch: Batch, variant: str) -> Estimates | None:
        """Streaming kernels in half precision whose correction was fitted; None for all others."""
        if batch.family not in STREAMS or batch.dtype not in HALF:
            return None
        residual = nearest(self.residuals, batch.family, variant or HALF_VARIANT, self.spec)
        plain = batch.family == "elementwise" and not variant
        if residual is None or (plain and not residual.same_chip(self.spec)):
            return None
        answer = corrected_stream(batch, self.spec, residual)
        if not plain or set(map(plain_name, batch.names)) <= MEASURED_POINTWISE:
            return answer
        return replace(answer, spread=np.hypot(answer.spread, OTHER_OPERATOR_SPREAD))

    def _attention(self, batch: Batch, stacks: Sequence[str] | None) -> Estimates:
        """Fused attention, each version by its own model."""

        def forward(whole: Batch, stack: Sequence[str] | None) -> Estimates | None:
            chosen = self._choice("attention", whole.dtype, "")
            return None if chosen is None else self._learned(whole, chosen, stack)

        parts = []
        for version, rows in versions(batch, self.spec):
            stack = None if stacks is None else [stacks[i] for i in rows]
            part = batch if len(rows) == len(batch) else batch.take(rows)
            if self.known is not None and version in TABLED:
                known = self.known.estimate_batch(part, stack)
                answer = rescale_by_roofline(known, part, self.spec, self.known.spec)
            else:
                answer = attention_estimates(part, version, self.spec, self.residuals, forward, stack)
            parts.append((rows, answer))
        return put_together(parts, len(batch))

    def reading_us(self, batch: Batch, kernel_us: FloatArray, *, as_tabled: bool = True) -> FloatArray:
        """What CUDA events around each operator would read (see `EventPath`).

        ``as_tabled``: on the board of the table; else on one at its usual clocks.
        """
        reading: FloatArray = kernel_us.copy()
        mine = Machine.of(self.spec, "fp32")
        stream = min(self.streams, key=lambda s: s.machine.distance(mine), default=None)
        for variant, rows in variants(batch):
            chosen = self._choice(batch.family, batch.dtype, variant)
            if len(rows) and chosen is not None:
                path = chosen.models[0].path if as_tabled else chosen.models[0].path.unthrottled()
                second = path.second_launch(batch.take(rows).dims, chosen.models[0].machine.sms)
                reading[rows] = path.reading_us(kernel_us[rows], second)
            elif stream is not None:
                for name in {batch.names[i] for i in rows.tolist()}:
                    at = rows[[batch.names[i] == name for i in rows.tolist()]]
                    reading[at] = stream.path_of(name).reading_us(kernel_us[at])
        return reading

    def _distinct(self, batch: Batch, chosen: Choice) -> Estimates:
        """Alike kernels are timed once: the layers of a model repeat their shapes."""
        if not 1 < len(batch) <= MOST_SORTED:
            return self._learned(batch, chosen, None)
        sizes = np.stack(list(batch.dims.values()), axis=1)
        _, first, same = np.unique(sizes, axis=0, return_index=True, return_inverse=True)
        same = same.reshape(-1)
        once = self._learned(batch.take(first), chosen, None)
        notes = (
            {i: once.notes[j] for i, j in enumerate(same.tolist()) if j in once.notes} if once.notes else {}
        )
        return Estimates(once.time_us[same], once.source[same], once.spread[same], notes)

    def _learned(self, batch: Batch, chosen: Choice, stack: Sequence[str] | None) -> Estimates:
        if chosen.tiled:
            time_us = chosen.start_us + tiled_us(batch, chosen.machines[0])
            return Estimates.uniform(time_us, chosen.source, chosen.spread, chosen.note)
        logs, far = [], np.zeros(len(batch))
        for model, machine in zip(chosen.models, chosen.machines, strict=True):
            time_us, outside = model.time_us(batch, machine, stack)
            logs.append(np.log(time_us))
            far = np.maximum(far, outside)
        if stack is None and chosen.siblings:
            others = (m.time_us(batch, m.machine)[0] for m in chosen.siblings)
            logs = [np.minimum.reduce([*logs, *map(np.log, others)])]
        # Relatives err towards their own library's weak spots, of which about half carry over.
        time_us = chosen.factor * np.exp((np.min(logs, axis=0) + np.mean(logs, axis=0)) / 2) + chosen.start_us
        spread = np.hypot(chosen.spread, np.minimum(OUTSIDE_SPREAD * far, MOST_OUTSIDE_SPREAD))
        answer = Estimates.uniform(time_us, chosen.source, chosen.spread, chosen.note)
        for i in np.nonzero(far > FAR_OUTSIDE)[0].tolist():
            note = joined(chosen.note, beyond_shapes(chosen.spread, float(spread[i])))
            if note:
                answer.notes[i] = note
        return Estimates(time_us, answer.source, spread, answer.notes)

    def _choice(self, family: str, dtype: str, variant: str) -> Choice | None:
        key = (family, dtype, variant)
        if key not in self._choices:
            self._choices[key] = choose(self.shipped, self.spec, family, dtype, variant, self.boards)
        return self._choices[key]

    def _stream(self) -> tuple[Streamed | None, bool]:
        return measured_stream(self.streams, self.spec)

    def measured_lookups(self, operator: str) -> MeasuredLookups | None:
        """Lookups with an operator as they were measured for this platform; None where none were at all."""
        from stepsight.kernels.embedding.cpu.calibrated import CalibratedLookups

        return self._embedding.of(operator) if isinstance(self._embedding, CalibratedLookups) else None

    def _embedding_model(self) -> Estimator:
        if self._embedding is None:
            module = importlib.import_module("stepsight.kernels.embedding.model")
            model: Estimator = module.EmbeddingModel.for_gpu(self.given or self.spec)
            self._embedding = model
        return self._embedding


def _lookups(folder: Path) -> Estimator | None:
    """The lookups that were measured for a platform, by operator."""
    from stepsight.kernels.embedding.cpu.calibrated import CalibratedLookups

    lookups = CalibratedLookups.load(folder)
    return lookups if lookups.models else None
