"""Which layers the pieces of a pipeline hold."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.platform.load import load_platform
from stepsight.prediction.language import quick
from stepsight.workload.llm.config import LanguageConfig, read_language
from stepsight.workload.llm.known import named
from stepsight.workload.llm.pipeline import pieces, tensors_between


def config(model: str, **parallel: Any) -> LanguageConfig:
    document = {**named(model), "global_batch": 32, "parallel": parallel}
    return read_language(document, model)


def test_embedding_and_head_may_be_pieces_of_their_own() -> None:
    """Meta's layout of Llama 3 405B: 126 layers on 16 stages of 8 pieces."""
    c = config("llama3.1-405b", tensor=8, pipeline=16, virtual_stages=8)
    assert [p.layers for p in pieces(c)] == [0, *[1] * 126, 0]


def test_pieces_without_layers_are_part_of_the_pipeline() -> None:
    machine = load_platform("16x8xH100-SXM-80G-400G")
    parallel = {"tensor": 8, "pipeline": 16, "sequence_parallel": True}
    eight, one = (quick(config("llama3.1-405b", virtual_stages=v, **parallel), machine) for v in (8, 1))
    assert eight.step_us < one.step_us


@pytest.mark.parametrize("stages", [2, 3, 4, 8, 16])
def test_encoder_layers_are_spread_over_stages_in_front_of_the_decoders(stages: int) -> None:
    c = config("t5-v1.1-xl", pipeline=stages)
    cut = pieces(c)
    encoder, decoder = [p.encoder for p in cut], [p.stop - p.start for p in cut]
    assert (sum(encoder), sum(decoder)) == (c.model.encoder_layers, c.model.layers)
    assert not any(e and d for e, d in zip(encoder, decoder, strict=True))
    assert encoder == sorted(encoder, reverse=True)
    assert all(decoder[i] for i in range(stages) if not encoder[i])


def test_an_encoder_s_output_goes_along_between_stages_of_the_decoder() -> None:
    assert tensors_between(config("t5-v1.1-xl", pipeline=4)) == [1, 1, 2, 2]
    assert tensors_between(config("llama3-8b", pipeline=4)) == [1, 1, 1, 1]


def test_an_encoder_and_its_decoder_are_not_interleaved() -> None:
    with pytest.raises(Exception, match="virtual_stages: an encoder"):
        config("t5-v1.1-xl", pipeline=4, virtual_stages=2)


@pytest.mark.parametrize(("virtual", "counts"), [(1, [*[4] * 15, 1]), (2, [1, *[2] * 30, 0])])
def test_layers_that_predict_further_tokens_lie_on_the_last_piece(virtual: int, counts: list[int]) -> None:
    """Megatron's layouts of DeepSeek-V3."""
    c = config("deepseek-v3", pipeline=16, virtual_stages=virtual)
    assert [p.layers for p in pieces(c)] == counts
