"""How a pipeline cuts a model into pieces, and the order in which its stages work."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.platform.load import load_platform
from stepsight.prediction.language import quick
from stepsight.workload.files import load_model, named
from stepsight.workload.llm.config import LanguageConfig, read_language
from stepsight.workload.llm.pieces import Pieces
from stepsight.workload.llm.pipeline import Exchange, Item, exchanges, orders, pieces, tensors_between
from stepsight.workload.llm.workload import LanguageWorkload


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


CASES = [("afab", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zero_bubble", 1)]


@pytest.mark.parametrize(("schedule", "virtual"), CASES)
def test_every_pass_of_every_micro_batch_runs_once(schedule: str, virtual: int) -> None:
    for stage, items in enumerate(orders(schedule, 4, 8, virtual)):
        kinds = "FBW" if schedule == "zero_bubble" else "FB"
        pieces = range(stage, 4 * virtual, 4)
        assert len(items) == len(set(items)) == 8 * virtual * len(kinds)
        assert set(items) == {Item(k, p, m) for k in kinds for p in pieces for m in range(8)}


@pytest.mark.parametrize(("schedule", "virtual"), CASES)
def test_both_ends_of_a_boundary_see_its_messages_in_the_same_order(schedule: str, virtual: int) -> None:
    lists = exchanges(orders(schedule, 4, 8, virtual), 4 * virtual)
    for s in range(4):
        for t in range(4):
            between = [
                [i for i in items if isinstance(i, Exchange) and (i.source, i.target) == (s, t)]
                for items in (lists[s], lists[t])
            ]
            assert between[0] == between[1]


def test_1f1b_keeps_no_more_micro_batches_than_stages_behind_it() -> None:
    for stage, items in enumerate(orders("1f1b", 4, 16)):
        open_, most = 0, 0
        for item in items:
            open_ += 1 if item.kind == "F" else -1
            most = max(most, open_)
        assert most == 4 - stage


@pytest.mark.parametrize("schedule", ["afab", "1f1b", "interleaved", "zero_bubble"])
@pytest.mark.parametrize("stages", [2, 3, 5, 6, 8])
def test_no_stage_waits_for_itself(schedule: str, stages: int) -> None:
    """Whatever the micro-batches; an interleaved pipeline takes them in multiples of its stages."""
    pieces = (2, 3, 4) if schedule == "interleaved" else (1,)
    batches = range(stages, 4 * stages, stages) if schedule == "interleaved" else range(1, 3 * stages + 2)
    for virtual in pieces:
        for m in batches:
            lists = exchanges(orders(schedule, stages, m, virtual), stages * virtual)
            assert len(lists) == stages


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
