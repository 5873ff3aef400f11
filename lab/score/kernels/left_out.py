"""fp32 products left out in four ways besides single shapes: by size, by (n, k) pair, by GPU, by source.

Sizes and pairs are left out by fitting again without them, with the recipe of what ships. A GPU is left out
by asking the models of the others. The other source is operators of real models (nlp_ops_fp32.parquet),
which no table model saw; shares of boards are fitted again without the model that is scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.fit.kernels.boards import Products, fit_board, model_products
from lab.fit.kernels.events import reading_us
from lab.fit.kernels.learn import fingerprint
from lab.fit.kernels.recipes import event_model
from lab.fit.kernels.sources import Measured, held_out
from lab.score.kernels.judged import Judged, judge
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.learned.model import LearnedModel, shipped_models
from stepsight.kernels.learned.transfer import Boards
from stepsight.kernels.machine import Machine
from stepsight.kernels.models import KernelModels
from stepsight.score import Score

SIZE_BAR, GPU_BAR = 0.035, 0.09
SMALL_BATCHED = 512
"""Batched products are fitted on sizes up to here and asked about larger ones."""
SMALL_ROWS = 2048
"""Linear layers likewise, by their rows."""
LEAST_OTHERS = 4
"""Products of other models below which no share is fitted to score a model with."""


def refitted_scores(measured: Sequence[Measured]) -> Iterator[Score]:
    """Large sizes by fits on small ones; whole (n, k) pairs of linear layers by fits on others."""
    for part in measured:
        judged = _refitted(part, _large(part), "sizes left out")
        if judged is not None:
            yield judged.score((SIZE_BAR, None))
        if part.variant == "linear":  # batched products hardly share a pair
            judged = _refitted(part, held_out(part.batch.dims, ("n", "k")), "(n, k) pairs left out")
            if judged is not None:
                yield judged.score()


def gpu_scores(measured: Sequence[Measured], family: str, bar: float | None = None) -> list[Score]:
    """Each GPU timed by the models of the others, as one without tables would be."""
    parts = []
    for part in measured:
        models = _without_chip(KernelModels.for_gpu(load_gpu(part.gpu)))
        every, kind = np.ones(len(part.time_us), dtype=bool), f"GPU left out: {family} fp32 {part.variant}"
        judged = judge(part, every, models, f"{kind} {part.gpu}", "all shapes", kind)
        if judged is not None:
            parts.append(judged)
    return with_all(parts, f"{family} fp32", (bar, None))


def with_all(parts: Sequence[Judged], what: str, bars: tuple[float | None, float | None]) -> list[Score]:
    """One line per GPU, and one over all rows of all GPUs, which carries the bars."""
    if not parts:
        return []
    together = Judged.pooled(f"GPU left out: {what}, all", parts, f"all rows of {len(parts)} lines")
    return [*(part.score() for part in parts), together.score(bars)]


def source_scores(data: Path) -> list[Score]:
    """Products of real models on every board that was measured with them."""
    return [judged.score() for judged in map(_of_models, model_products(data)) if judged is not None]


def _large(part: Measured) -> npt.NDArray[np.bool_]:
    d = part.batch.dims
    if part.variant == "linear":
        return np.asarray(d["m"] > SMALL_ROWS)
    return np.asarray(np.max([d[key] for key in ("batch", "m", "n", "k")], axis=0) > SMALL_BATCHED)


def _refitted(part: Measured, apart: npt.NDArray[np.bool_], how: str) -> Judged | None:
    """``apart`` scored by a model fitted on the other rows alone."""
    spec = load_gpu(part.gpu)
    if apart.all() or not apart.any():
        return None
    model = event_model(replace(part, held_out=apart), Machine.of(spec, "fp32"), 0.0)
    # In the field the spread comes from shapes left out inside the range, so it does here.
    models = KernelModels(spec, (replace(model, spread=_shipped(part).spread),))
    kind = f"{how}: gemm fp32 {part.variant}"
    return judge(part, apart, models, f"{kind} {part.gpu}", _used(part, how), kind)


def _shipped(part: Measured) -> LearnedModel:
    """The model that ships for the part's board and op."""
    wanted = (load_gpu(part.gpu).name, part.batch.family, part.batch.dtype, part.variant)
    return next(m for m in shipped_models() if (m.machine.name, m.family, m.dtype, m.variant) == wanted)


def is_fitted_table(part: Measured) -> bool:
    """Whether these very rows are those the shipped model was fitted on."""
    try:
        return _shipped(part).provenance.fingerprint == fingerprint([part])
    except StopIteration:
        return False


def _used(part: Measured, how: str) -> str:
    if "pairs" in how:
        return "a tenth of the pairs, fitted on the others"
    limit = f"m ≤ {SMALL_ROWS}" if part.variant == "linear" else f"sizes ≤ {SMALL_BATCHED}"
    return f"fitted on {limit}, scored beyond"


def _without_chip(models: KernelModels) -> KernelModels:
    mine = Machine.of(models.spec, "fp32")
    strangers = tuple(m for m in models.shipped if not m.machine.same_chip(mine))
    return KernelModels(models.spec, strangers, models.streams, boards=models.boards)


def _of_models(products: Products) -> Judged | None:
    """One kind of product on one board, model by model; a board's share never knows the model it is asked."""
    spec = load_gpu(products.gpu)
    shipped = KernelModels.for_gpu(spec)
    tabled = any(
        m.machine.name == spec.name for m in shipped.shipped if m.dtype == "fp32" and m.family == "gemm"
    )
    predicted, spread = np.zeros(len(products.time_us)), np.zeros(len(products.time_us))
    for model in dict.fromkeys(products.models):
        mine = np.array([name == model for name in products.models])
        models = shipped
        if not tabled:
            others = products.take(np.nonzero(~mine)[0])
            if len(others.time_us) < LEAST_OTHERS:
                continue
            share = fit_board(others, shipped.shipped)
            models = KernelModels(spec, shipped.shipped, shipped.streams, boards=Boards((share,)))
        batch = products.take(np.nonzero(mine)[0]).batch
        answer = models.estimate_batch(batch)
        predicted[mine] = reading_us(models, batch, answer.time_us, as_tabled=False)
        spread[mine] = answer.spread
    at = np.nonzero(predicted)[0]
    if not len(at):
        return None
    how = "by its table" if tabled else "by relatives and a share fitted on other models"
    kind = f"source left out: gemm fp32 {products.variant}"
    used = f"operators of real models, {how}"
    name = f"{kind} {products.gpu}"
    return Judged.of(name, predicted[at], products.time_us[at], spread[at], used, kind)
