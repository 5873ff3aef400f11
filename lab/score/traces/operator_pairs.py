"""One GPU's operators moved to another GPU that ran the same ones: nlp_ops_fp32.parquet as traces.

The exponents of anchoring are fitted on these operators, so each pair is scored with exponents fitted without
the GPU it is moved to; rows of another folder with those that ship.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from lab.datasets.folder import data_folder
from lab.fit.anchoring.operator_steps import OperatorStep, operator_steps, ordered_pairs
from lab.fit.anchoring.weights import fit_weights, model_us, pair_samples
from lab.score.traces.pairs import OPERATORS, PairRow, by_datasheet
from stepsight.errors import InputError
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.answer import predict_job
from stepsight.prediction.traced.anchoring import anchored, moved
from stepsight.prediction.traced.weights import AnchorWeights, shipped_weights

DTYPE = "fp32"


def operator_pair_rows(data: Path) -> Iterator[PairRow]:
    """Every ordered pair of GPUs of every workload, training and inference."""
    steps = operator_steps(data)
    weights = _left_out(steps) if _is_fitted(data) else {}
    for a, b in ordered_pairs(steps):
        if a.parts:
            yield _row(a, b, weights.get(b.gpu) or shipped_weights())


def _is_fitted(data: Path) -> bool:
    """Whether the folder is the one that the shipped exponents were fitted from; others took no part."""
    try:
        return data.resolve() == data_folder().resolve()
    except InputError:
        return False


def _left_out(steps: list[OperatorStep]) -> dict[str, AnchorWeights]:
    """The exponents for each GPU, fitted without it."""
    samples = list(pair_samples(steps))
    kept = {
        gpu: [s for s in samples if gpu not in (s.source, s.target)] for gpu in {s.target for s in samples}
    }
    return {gpu: fit_weights(mine) for gpu, mine in kept.items() if mine}


def _row(a: OperatorStep, b: OperatorStep, weights: AnchorWeights) -> PairRow:
    here, there = _platform(a.gpu), _platform(b.gpu)
    job = a.job(model_us(a, a.gpu))
    job_there, ready = moved(anchored(job, here, weights), here, there)
    answer = predict_job(job_there.job, ready, steps=1, seen=job_there.seen)
    by_models = float(np.sum(model_us(a, b.gpu)))
    return PairRow(
        f"{OPERATORS} {a.name}", a.gpu, b.gpu, a.measured_us / 1e3, b.measured_us / 1e3,
        answer.step_us / 1e3, by_models / 1e3,
        a.measured_us / 1e3 * by_datasheet(here.spec.gpu, there.spec.gpu, DTYPE),
        answer.low_us / 1e3, answer.high_us / 1e3, training="train" in a.name,
    )  # fmt: skip


@lru_cache(maxsize=32)
def _platform(gpu: str) -> Platform:
    return load_platform(f"1x{gpu}")
