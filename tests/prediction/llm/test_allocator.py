"""What the allocator of the first rank holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepsight.platform.load import load_platform
from stepsight.prediction.llm.allocator import reserved_bytes
from stepsight.prediction.llm.compose import Composer
from stepsight.prediction.llm.slow_runs import Mixture
from stepsight.workload.llm.config import read_language
from stepsight.workload.llm.memory import stage_memory, usable_bytes


def composer(micro_batch: int, **parallel: int) -> Composer:
    document = {
        "kind": "transformer", "family": "llama", "layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336,
        "vocab": 131072, "sequence": 4096, "global_batch": 256, "training": {"framework": "nanotron"},
        "parallel": {"tensor": 8, "sequence_parallel": True, "micro_batch": micro_batch, **parallel},
    }  # fmt: skip
    c = read_language(document, "test")
    return Composer(c, load_platform("2x8xH100-SXM-80G-400G").with_ranks(c.ranks))


@pytest.fixture(scope="module")
def usual() -> tuple[Composer, Mixture]:
    made = composer(4, data=2, zero=1)
    return made, Mixture(made.step())


def test_free_blocks_lie_in_the_allocator_of_a_run_that_is_not_slow(usual: tuple[Composer, Mixture]) -> None:
    made, runs = usual
    held = stage_memory(made.c)[0]
    assert reserved_bytes(made, runs) == pytest.approx(held.total + held.reclaimable)


def test_a_run_that_is_surely_slow_holds_what_it_needs(usual: tuple[Composer, Mixture]) -> None:
    made, runs = usual
    slow = replace(runs, slow=runs.usual, probability=0.99)
    assert reserved_bytes(made, slow) == stage_memory(made.c)[0].total


def test_free_blocks_do_not_exceed_the_gpu() -> None:
    made = composer(32, tensor=16)
    held = stage_memory(made.c)[0]
    room = usable_bytes(80)
    assert held.total < room < held.total + held.reclaimable
    assert reserved_bytes(made, Mixture(made.step())) == room
