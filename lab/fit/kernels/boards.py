"""Which share of its fp32 peak each board keeps up, fitted on products of real models measured on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.datasets.folder import read_table
from lab.fit.kernels.events import model_reading_us, reading_us
from lab.fit.kernels.learn import FIT_DATE, spread_of
from stepsight.estimate import FloatArray, IntArray
from stepsight.hardware.gpus import find_gpu, load_gpu
from stepsight.kernels.columns import Batch
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
        source="fp32 operators of transformers timed by CUDA events",
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
    stretch = float(np.median(model_reading_us(model, mine[0].batch, kernel_us) / mine[0].time_us))
    trees = replace(model.trees, bias=model.trees.bias - float(np.log(stretch)))
    return replace(model, trees=trees, path=replace(model.path, stretch=stretch))


def _log_ratio(products: Products, models: Sequence[LearnedModel], share: float) -> FloatArray:
    trial = Board(products.gpu, products.variant, share, 0.1, 0, 0.0, "", "")
    asked = KernelModels(load_gpu(products.gpu), tuple(models), boards=Boards((trial,)))
    reading = reading_us(asked, products.batch, asked.estimate_batch(products.batch).time_us)
    return np.asarray(np.log(reading / products.time_us))


FILE = "nlp_ops_fp32.parquet"
CLEAR_US = 60.0
"""Shorter readings are mostly the host's."""
SLOW_RUNS = frozenset({("NVIDIA_A100-PCIE-40GB", "bert_large")})
"""Runs whose every product took about 1.8 times as long as like ones of other runs on the same board,
and whose layers sum to 1.4 times the step measured next to them (nlp_fp32.csv)."""


@dataclass(frozen=True, slots=True)
class Products:
    """Forward products of one kind on one board: sizes, readings, and the model each belongs to."""

    gpu: str
    variant: str
    batch: Batch
    time_us: FloatArray
    models: tuple[str, ...]

    def take(self, rows: IntArray) -> Products:
        """Some of the products."""
        batch = replace(self.batch.take(rows), positions=np.arange(len(rows)))
        models = tuple(self.models[int(i)] for i in rows)
        return Products(self.gpu, self.variant, batch, self.time_us[rows], models)


Product = tuple[str, tuple[int, int, int, int]]


def model_products(data: Path) -> Iterator[Products]:
    """Products above `CLEAR_US` by board and kind, each shape once per model and mode."""
    path = data / "kernels" / FILE
    if not path.is_file():
        return
    table = read_table(path)
    keys = ("device", "model", "mode", "op", "target", "input_shapes", "output_shape", "forward_us")
    found: dict[tuple[str, str], dict[tuple[object, ...], tuple[Product, float, str]]] = {}
    for device, model, mode, op, target, inputs, output, time in zip(*(table[k] for k in keys), strict=True):
        if not float(time) > CLEAR_US or (device, model) in SLOW_RUNS or find_gpu(str(device)) is None:
            continue
        product = _product(str(op), str(target), str(inputs), str(output))
        if product is not None:
            once = found.setdefault((str(device), product[0]), {})
            once.setdefault((product, str(model), str(mode)), (product, float(time), str(model)))
    for (device, variant), named in found.items():
        rows = list(named.values())
        sizes = np.array([product[1] for product, _, _ in rows], dtype=np.float64).T
        dims = dict(zip(("batch", "m", "n", "k"), sizes, strict=True))
        entry = find_gpu(device)
        if entry is not None:
            yield Products(
                entry.gpu.name,
                variant,
                Batch.of("gemm", "fp32", dims, variant),
                np.array([time for _, time, _ in rows]),
                tuple(model for _, _, model in rows),
            )


def _product(op: str, target: str, inputs: str, output: str) -> Product | None:
    try:
        shapes = json.loads(inputs)
        out = json.loads(output.replace("(", "[").replace(",)", "]").replace(")", "]"))
    except ValueError:
        return None
    if target == "addmm" and len(shapes) == 3:
        (m, k), (_, n) = shapes[1:]
        return "linear", (1, m, n, k)
    if target in ("matmul", "bmm") and len(shapes) == 2:
        left, right = shapes
        m, n, k = left[-2], right[-1], left[-1]
        # Scores of attention are asked for with strided keys and queries, which matmul copies first.
        copied = target == "matmul" and n > k
        return None if copied else ("bmm", (int(np.prod(left[:-2])), m, n, k))
    if op == "call_module" and _is_linear(target, shapes, out):
        return "linear", (1, int(np.prod(shapes[0][:-1])), out[-1], shapes[0][-1])
    return None


def _is_linear(target: str, shapes: list[list[int]], out: list[int]) -> bool:
    words = ("dense", "query", "key", "value", "lm_head", "proj", "fc1", "fc2", "predictions.decoder")
    other = ("orm", "ropout", "embed", "activation")
    named = any(word in target for word in words) and not any(word in target for word in other)
    return named and len(shapes) >= 1 and len(shapes[0]) >= 2 and len(out) == len(shapes[0])
