"""Hybrid models: layers of one block each, some of them Mamba-2 mixers."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight.errors import InputError
from stepsight.workload.files import named
from stepsight.workload.llm.config import LanguageConfig, read_language
from stepsight.workload.llm.layer import layer_work


def config(**more: Any) -> LanguageConfig:
    document = {
        "kind": "transformer", "family": "nemotron_h", "pattern": "M-M*-", "hidden": 1024, "heads": 8,
        "ffn": 4096, "vocab": 8192, "sequence": 2048, "batch_per_rank": 1, "mamba": {"heads": 32}, **more,
    }  # fmt: skip
    return read_language(document, "test")


@pytest.mark.parametrize(
    ("model", "billions", "active"),
    [("nemotron-h-8b", 8.1, 8.1), ("nemotron-h-56b", 56.3, 56.3), ("nemotron-3-nano-30b-a3b", 31.6, 3.6)],
)
def test_shipped_hybrids_have_their_published_number_of_parameters(
    model: str, billions: float, active: float
) -> None:
    found = read_language(named(model), model).model
    assert found.parameters() / 1e9 == pytest.approx(billions, rel=0.01)
    assert found.parameters(active=True) / 1e9 == pytest.approx(active, rel=0.02)


def test_a_layer_of_a_hybrid_has_one_block() -> None:
    c = config()
    families = [
        {k.family for k in layer_work(c, experts=False, only=only).forward.kernels}
        for only in ("mamba", "attention", "mlp")
    ]
    assert ["attention" in found for found in families] == [False, True, False]


def test_the_scan_costs_as_much_for_each_token_however_long_the_sequence() -> None:
    def flops(sequence: int) -> float:
        work = layer_work(config(sequence=sequence), experts=False, only="mamba")
        sizes = [(dict(k.dims), n) for k, n in work.forward.kernels.items() if k.family == "gemm"]
        return sum(n * d["batch"] * d["m"] * d["n"] * d["k"] for d, n in sizes)

    assert flops(8192) == pytest.approx(4 * flops(2048))


@pytest.mark.parametrize(
    ("more", "field"),
    [({"pattern": "MX"}, "pattern"), ({"pattern": "ME"}, "moe"), ({"layers": 4}, "pattern")],
)
def test_a_pattern_must_fit_the_model(more: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        config(**more)
