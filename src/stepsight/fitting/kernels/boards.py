"""Which share of its fp32 peak each board keeps up, fitted on products of real models measured on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.fitting.kernels.learn import FIT_DATE, spread_of
from stepsight.fitting.kernels.model_products import FILE, Products
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.learned.boards import Board, Boards
from stepsight.kernels.learned.model import LearnedModel
from stepsight.kernels.models import KernelModels
from stepsight.score import gmae

LEAST_SHARE, MOST_SHARE, HALVINGS = 0.3, 1.5, 9
"""Shares searched, to 0.3 %."""
FEWEST = 4
APART = 1.2
"""Batched products use the same lanes under the same power limit as single ones; only the library's choice
of kernels differs, so their share stays within this factor."""
LEAST_SPREAD = 0.06
"""A handful of rows may lie closer together than the next ones will."""


def fit_boards(products: Sequence[Products], models: Sequence[LearnedModel]) -> list[Board]:
    """One share per board and kind of product, with the tables of the board itself left out."""
    enough = [part for part in products if len(part.time_us) >= FEWEST]
    found = {part.gpu: fit_board(part, models) for part in enough if part.variant == "linear"}
    boards = list(found.values())
    for part in enough:
        if part.variant != "linear":
            single = found.get(part.gpu)
            around = (0.0, np.inf) if single is None else (single.share / APART, single.share * APART)
            boards.append(fit_board(part, models, around))
    return boards


def fit_board(
    products: Products, models: Sequence[LearnedModel], around: tuple[float, float] = (0.0, np.inf)
) -> Board:
    """The share whose predictions lie as often above the readings as below."""
    strangers = [m for m in models if m.machine.name != products.gpu]
    low, high = np.log(max(around[0], LEAST_SHARE)), np.log(min(around[1], MOST_SHARE))
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
    if not mine or len(mine[0].time_us) < FEWEST:
        return model
    kernel_us, _ = model.time_us(mine[0].batch, model.machine)
    stretch = float(np.median(model.path.reading_us(kernel_us) / mine[0].time_us))
    trees = replace(model.trees, bias=model.trees.bias - float(np.log(stretch)))
    return replace(model, trees=trees, path=replace(model.path, stretch=stretch))


def _log_ratio(products: Products, models: Sequence[LearnedModel], share: float) -> FloatArray:
    trial = Board(products.gpu, products.variant, share, 0.1, 0, 0.0, "", "")
    asked = KernelModels(load_gpu(products.gpu), tuple(models), boards=Boards((trial,)))
    path = asked.event_path(products.batch)[0]
    reading = path.reading_us(asked.estimate_batch(products.batch).time_us)
    return np.asarray(np.log(reading / products.time_us))
