"""Which share of its fp32 peak each board keeps up, fitted on products of real models measured on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lab.fit.kernels.learn import FIT_DATE, spread_of
from lab.fit.kernels.model_products import FILE, Products
from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.learned.model import LearnedModel
from stepsight.kernels.learned.transfer import Board, Boards
from stepsight.kernels.models import KernelModels
from stepsight.score import gmae

LEAST_SHARE, MOST_SHARE, HALVINGS = 0.3, 1.5, 9
"""Shares searched, to 0.3 %."""
FEWEST = {"linear": 4, "bmm": 6}
"""Rows below which no share is fitted. Batched ones of a board are few shapes, each at several batches."""
LEAST_SPREAD = 0.06
"""A handful of rows may lie closer together than the next ones will."""


def fit_boards(products: Sequence[Products], models: Sequence[LearnedModel]) -> list[Board]:
    """One share per board and kind of product, with the tables of the board itself left out."""
    return [fit_board(part, models) for part in products if len(part.time_us) >= FEWEST[part.variant]]


def fit_board(products: Products, models: Sequence[LearnedModel]) -> Board:
    """The share whose predictions lie as often above the readings as below."""
    strangers = [m for m in models if m.machine.name != products.gpu]
    low, high = np.log(LEAST_SHARE), np.log(MOST_SHARE)
    for _ in range(HALVINGS):  # the larger the share, the shorter the times
        middle = (low + high) / 2
        if np.median(_log_ratio(products, strangers, float(np.exp(middle)))) > 0:
            low = middle
        else:
            high = middle
    share = round(float(np.exp((low + high) / 2)), 4)
    left = _log_ratio(products, strangers, share)
    return Board(
        gpu=products.gpu,
        variant=products.variant,
        share=share,
        spread=max(spread_of(left), LEAST_SPREAD),
        rows=len(left),
        gmae=gmae(np.exp(left), np.ones_like(left)),
        source=FILE,
        date=FIT_DATE,
    )


def unthrottled(model: LearnedModel, products: Sequence[Products]) -> LearnedModel:
    """The model of a board whose table ran slow, at the pace of the same board's operators elsewhere.

    Readings of the table's kind still come out slow: its event path says how much (`EventPath.stretch`).
    """
    mine = [p for p in products if (p.gpu, p.variant) == (model.machine.name, model.variant)]
    if not mine or len(mine[0].time_us) < FEWEST["linear"]:
        return model
    kernel_us, _ = model.time_us(mine[0].batch, model.machine)
    stretch = float(np.median(model.reading_us(mine[0].batch, kernel_us) / mine[0].time_us))
    trees = replace(model.trees, bias=model.trees.bias - float(np.log(stretch)))
    return replace(model, trees=trees, path=replace(model.path, stretch=stretch))


def _log_ratio(products: Products, models: Sequence[LearnedModel], share: float) -> FloatArray:
    trial = Board(products.gpu, products.variant, share, 0.1, 0, 0.0, "", "")
    asked = KernelModels(load_gpu(products.gpu), tuple(models), boards=Boards((trial,)))
    reading = asked.reading_us(products.batch, asked.estimate_batch(products.batch).time_us)
    return np.asarray(np.log(reading / products.time_us))
