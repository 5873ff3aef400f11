"""A sequence that is split over ranks: what each computes and sends."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.errors import InputError
from stepsight.program.job import Kernel
from stepsight.workload.llm.attention import attention_block, core
from stepsight.workload.llm.config import LanguageConfig, read_language

KINDS = ["ring", "all_gather", "all_to_all"]


def config(kv_heads: int = 8, **parallel: Any) -> LanguageConfig:
    document = {
        "kind": "transformer", "family": "llama", "layers": 8, "hidden": 1024, "heads": 8,
        "kv_heads": kv_heads, "ffn": 4096, "vocab": 8192, "sequence": 4096, "global_batch": 8,
        "parallel": {"micro_batch": 1, **parallel},
    }  # fmt: skip
    return read_language(document, "test")


def looked_at(kernel: Kernel) -> float:
    """Pairs of a query and a key that a kernel looks at."""
    d = dict(kernel.dims)
    return d["batch"] * d["heads"] * d["q"] * d["kv"] * (0.5 if d["causal"] else 1.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_ranks_share_the_pairs_evenly(kind: str, parts: int) -> None:
    whole = sum(map(looked_at, core(config()).forward))
    split = sum(map(looked_at, core(config(context=parts, context_kind=kind)).forward))
    assert parts * split == pytest.approx(whole)


def test_exchanged_heads_see_the_whole_sequence_in_one_kernel() -> None:
    (kernel,) = core(config(context=4, context_kind="all_to_all")).forward
    assert dict(kernel.dims)["q"] == dict(kernel.dims)["kv"] == 4096 and dict(kernel.dims)["heads"] == 2


def test_an_exchange_sends_all_three_in_and_the_result_back() -> None:
    block = attention_block(config(context=4, context_kind="all_to_all"))
    one = 4096 / 4 * 1024 * 2  # a rank's tokens in bf16
    assert [m.bytes for m in block.forward if m.axis == "context"] == [3 * one, one]
    assert [m.bytes for m in block.backward if m.axis == "context"] == [one, 3 * one]


def test_ranks_that_are_more_than_the_heads_compute_some_twice() -> None:
    """16 ranks of 8 heads: each head's queries, keys and values go to two ranks."""
    found = config(context=16, context_kind="all_to_all")
    (kernel,) = core(found).forward
    assert dict(kernel.dims)["heads"] == 1
    one = 4096 / 16 * 1024 * 2
    sent = [m.bytes for m in attention_block(found).forward if m.axis == "context"]
    assert sent == [2 * 3 * one, one]


def test_heads_of_keys_are_repeated_or_divided_over_the_ranks() -> None:
    assert config(kv_heads=2, context=4, context_kind="all_to_all").layout.context == 4
    assert config(kv_heads=2, context=4, context_kind="ring").layout.context == 4


def test_parts_one_after_the_other_load_the_last_rank() -> None:
    """It sees everything before its own part: (0.5 + 7) / (0.5 + 7 / 2) of a balanced rank's pairs."""
    even, uneven = (
        sum(map(looked_at, core(config(context=8, context_balanced=balanced)).forward))
        for balanced in (True, False)
    )
    assert uneven == pytest.approx(even * 7.5 / 4)
    with pytest.raises(InputError, match="context_balanced"):
        config(context_balanced=False)


def test_attention_stays_inside_the_documents_of_a_packed_sequence() -> None:
    document = {
        "kind": "transformer", "family": "llama", "layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096,
        "vocab": 8192, "sequence": 4096, "global_batch": 8, "parallel": {"micro_batch": 1},
    }  # fmt: skip
    whole, packed = (read_language({**document, "document_tokens": n}, "test") for n in (0, 512))
    assert sum(map(looked_at, core(packed).forward)) == sum(map(looked_at, core(whole).forward)) / 8
    with pytest.raises(InputError, match="document_tokens"):
        read_language({**document, "document_tokens": 1000}, "test")
