"""How layers are spread over the stages of a pipeline."""

from __future__ import annotations

import pytest

from stepsight.workload.files import load_model
from stepsight.workload.llm.config import read_language
from stepsight.workload.llm.pieces import Pieces
from stepsight.workload.llm.pipeline import pieces
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


def test_a_layer_that_predicts_a_further_token_adds_itself_and_a_head() -> None:
    document = {
        "kind": "transformer", "family": "llama", "layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096,
        "vocab": 8192, "sequence": 1024, "batch_per_rank": 4,
        "parallel": {"pipeline": 2, "virtual_stages": 1},
    }  # fmt: skip
    plain, further = (read_language({**document, "mtp_layers": n}, "test") for n in (0, 1))
    last = [Pieces(c, 1).work(pieces(c)[-1]) for c in (plain, further)]
    assert [run.label for run in last[1].forward][-2:] == ["mtp", "head"]
    assert last[1].head_bytes == 2 * last[0].head_bytes
    assert further.model.flops_per_token(1024) > plain.model.flops_per_token(1024)
