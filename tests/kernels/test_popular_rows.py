"""Gradients of embedding rows that many lookups share."""

import pytest

from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.models import KernelModels
from stepsight.program.job import Kernel

H100 = KernelModels.for_gpu(load_gpu("H100-SXM"))


def time_us(name: str = "", **sizes: float) -> float:
    kernel = Kernel.of("scatter", "fp32", operator=name, **({"cols": 16} | sizes))
    return H100.estimate([kernel])[0].time_us


def test_a_stated_hot_row_makes_a_chain_of_a_tenth_of_its_lookups() -> None:
    cold, hot = (time_us(rows=1e6, table_rows=50_000, hottest=share) for share in (1e-9, 0.5))
    assert hot - cold == pytest.approx(0.2 * 0.5 * 1e6 / 10, rel=0.01)


def test_millions_of_lookups_into_a_few_buckets_take_milliseconds() -> None:
    assert 20e3 < time_us(rows=2048 * 2048, table_rows=32) < 60e3


def test_words_of_a_vocabulary_wait_for_nobody() -> None:
    assert time_us(rows=16_384, table_rows=50_257, cols=768) < 500


def test_short_lists_and_other_additions_have_no_chain() -> None:
    assert time_us(rows=3000, table_rows=2) < 50
    assert time_us("index_put", rows=1e6, table_rows=2, hottest=1.0) == time_us(
        "index_put", rows=1e6, table_rows=2
    )
