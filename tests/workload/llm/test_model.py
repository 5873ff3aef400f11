"""The sizes of a model: parameters, and FLOPs as MFU counts them."""

from __future__ import annotations

import pytest

from stepsight.errors import InputError
from stepsight.workload.files import load_model
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.workload import LanguageWorkload


def config(name: str, *changes: str) -> LanguageConfig:
    workload = load_model(name, list(changes))
    assert isinstance(workload, LanguageWorkload)
    return workload.config


def attention_flops(name: str, sequence: int) -> float:
    """FLOPs a token beyond those of its parameters."""
    model = config(name).model
    return model.flops_per_token(sequence) - model.flops_per_token(0)


@pytest.mark.parametrize(
    ("name", "full", "windowed", "window"),
    [
        ("gemma3-12b", 8, 40, 1024),  # every sixth sees everything
        ("gemma3-4b", 5, 29, 1024),  # of 34, the 6th to the 30th
        ("gemma2-9b", 21, 21, 4096),
        ("gpt-oss-20b", 12, 12, 128),
        ("mistral-7b", 0, 32, 4096),
        ("llama3-8b", 32, 0, 0),
    ],
)
def test_attention_is_counted_layer_by_layer(name: str, full: int, windowed: int, window: int) -> None:
    model = config(name).model
    width, sequence = model.heads * model.head_dim, 32768
    assert model.unwindowed_layers == full
    counted = 12 * width * (full * sequence + windowed * window)
    assert attention_flops(name, sequence) == pytest.approx(counted)


def test_a_window_longer_than_the_sequence_changes_nothing() -> None:
    model = config("gemma2-9b").model
    width = model.heads * model.head_dim
    assert attention_flops("gemma2-9b", 2048) == pytest.approx(12 * width * model.layers * 2048)


def test_layers_that_see_everything_can_be_counted_instead() -> None:
    model = config("mistral-7b", "full_layers=20").model
    assert model.unwindowed_layers == 20
    with pytest.raises(InputError, match="full_layers"):
        config("llama3-8b", "full_layers=20")
    with pytest.raises(InputError, match="full_layers"):
        config("gemma2-9b", "full_layers=20")
