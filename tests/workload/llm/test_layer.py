"""What a layer does depends on its own share of the job alone."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.workload.llm.config import LanguageConfig, read_language
from stepsight.workload.llm.layer import as_one_layer_sees, layer_work


def config(**parallel: Any) -> LanguageConfig:
    document = {
        "kind": "transformer", "family": "llama", "layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096,
        "vocab": 8192, "sequence": 1024, "global_batch": 32,
        "training": {"framework": "torchtitan"}, "parallel": {"micro_batch": 1, "zero": 0, **parallel},
    }  # fmt: skip
    return read_language(document, "test")


@pytest.mark.parametrize(
    "other", [{"data": 8}, {"data": 4, "zero": 1}, {"data": 2, "schedule": "afab", "pipeline": 4}], ids=str
)
def test_replicas_and_stages_do_not_change_a_layer(other: dict[str, Any]) -> None:
    base = config(data=2, pipeline=other.get("pipeline", 1))
    assert layer_work(config(**other), experts=False) is layer_work(base, experts=False)


@pytest.mark.parametrize("other", [{"tensor": 2}, {"context": 2}, {"data": 8, "zero": 3}, {"micro_batch": 2}])
def test_what_a_layer_sees_keeps_layers_apart(other: dict[str, Any]) -> None:
    assert as_one_layer_sees(config(**other)) != as_one_layer_sees(config())


def test_a_layer_sees_all_that_it_saw_before() -> None:
    seen = as_one_layer_sees(config(data=4, pipeline=2, zero=1))
    assert as_one_layer_sees(seen) == seen
