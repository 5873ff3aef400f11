"""How layers are spread over the stages of a pipeline."""

from __future__ import annotations

import pytest

from stepsight.workload.files import load_model
from stepsight.workload.llm.cut import pieces
from stepsight.workload.llm.workload import LanguageWorkload


def counts(layers: int, stages: int, framework: str = "megatron") -> list[int]:
    made = load_model(
        "llama3-8b",
        [
            f"layers={layers}", f"parallel.pipeline={stages}", "parallel.data=1",
            f"training.framework={framework}", "batch_per_rank=64", "parallel.virtual_stages=1",
        ],
    )  # fmt: skip
    assert isinstance(made, LanguageWorkload)
    return [piece.layers for piece in pieces(made.config)]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(32, [8, 8, 8, 8]), (30, [7, 8, 8, 7]), (31, [7, 8, 8, 8]), (29, [7, 8, 7, 7]), (33, [8, 9, 8, 8])],
)
def test_the_first_stage_never_holds_more_than_another(layers: int, expected: list[int]) -> None:
    assert counts(layers, 4) == expected


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "nanotron"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_every_layer_is_on_one_stage(stages: int, framework: str) -> None:
    for layers in range(16, 33):
        assert sum(counts(layers, stages, framework)) == layers


def test_nanotron_spares_the_stage_of_the_head() -> None:
    found = counts(32, 4, "nanotron")
    assert found[-1] < found[0]
