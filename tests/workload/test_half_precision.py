"""Half precision is never slower than autocast on a GPU with tensor cores; idle fields are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.workload.files import load_workload

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("family", ["llama", "gpt", "gpt2", "bert", "xlnet"])
def test_half_precision_throughout_is_never_slower_than_autocast(family: str) -> None:
    platform = load_platform("8xH100-SXM")

    def step_us(master: str) -> float:
        changes = [
            "training.precision=bf16",
            f"training.master_weights={master}",
            "layers=2",
            "parallel.data=8",
        ]
        return predict(load_workload(EXAMPLES / f"{family}.toml", changes), platform).step_time_us

    assert step_us("true") <= step_us("false")


@pytest.mark.parametrize(
    ("example", "change"),
    [
        ("dlrm", "training.recompute=true"),
        ("dlrm", 'training.attention="flash"'),
        ("dlrm", "training.dropout=0.1"),
        ("xlnet", "training.recompute=true"),
        ("xlnet", 'training.attention="flash"'),
        ("gpt2", "training.master_weights=true"),
    ],
)
def test_a_field_without_effect_is_refused(example: str, change: str) -> None:
    with pytest.raises(InputError, match="no effect"):
        load_workload(EXAMPLES / f"{example}.toml", [change])


@pytest.mark.parametrize("family", ["llama", "bert", "gpt2"])
def test_recomputation_takes_effect(family: str) -> None:
    plain, again = (
        load_workload(EXAMPLES / f"{family}.toml", ["layers=2", f"training.recompute={value}"])
        for value in ("false", "true")
    )
    assert again.memory().ranks[0].peak_active < plain.memory().ranks[0].peak_active
    assert len(again.job().programs[0]) > len(plain.job().programs[0])
