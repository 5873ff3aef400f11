"""Buckets of gradients as DistributedDataParallel fills them."""

from __future__ import annotations

import pytest

from stepsight.workload.llm.buckets import bucket_count
from stepsight.workload.llm.config import LanguageConfig, read_language
from stepsight.workload.llm.cut import Piece


def config(hidden: int, **parallel: int) -> LanguageConfig:
    document = {
        "kind": "transformer", "family": "llama", "layers": 16, "hidden": hidden, "heads": 32,
        "ffn": 4 * hidden, "vocab": 32000, "sequence": 2048, "global_batch": 16,
        "training": {"framework": "nanotron"}, "parallel": {"data": 2, **parallel},
    }  # fmt: skip
    return read_language(document, "test")


def count(c: LanguageConfig, layers: int) -> int:
    return bucket_count(c, [Piece(0, layers, False, False)])


@pytest.mark.parametrize(("hidden", "a_layer"), [(2048, 3), (4096, 4)])
def test_a_tensor_above_the_limit_fills_a_bucket_alone(hidden: int, a_layer: int) -> None:
    """At 2,048 the output projection (8 MiB in half precision) shares a bucket, at 4,096 it has its own."""
    c = config(hidden)
    assert (count(c, 12) - count(c, 4)) / 8 == a_layer


def test_small_tensors_share_buckets() -> None:
    c = config(512)  # 4 MiB a layer and half: 8 MiB, six layers and a bit fill 25 MiB
    assert count(c, 16) < 16


def test_tensor_parallelism_makes_fewer_buckets() -> None:
    assert count(config(2048, tensor=8), 16) < count(config(2048), 16)


def test_ends_have_their_own_tables() -> None:
    c = config(2048)
    inner, ends = Piece(0, 4, False, False), Piece(0, 4, True, True)
    assert bucket_count(c, [ends]) == bucket_count(c, [inner]) + 2
