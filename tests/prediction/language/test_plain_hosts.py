"""Plain PyTorch is host-bound in small models, whichever way it is described."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsight import Prediction, load_platform, load_workload, predict

EXAMPLES = Path(__file__).parents[3] / "examples"


def step(name: str, *changes: str, platform: tuple[str, ...] = ()) -> Prediction:
    sizes = load_workload(EXAMPLES / f"{name}.toml", ["training.precision=bf16", *changes])
    return predict(sizes, load_platform("8xH100-SXM", list(platform)))


@pytest.mark.parametrize("framework", ["hf", "eager"])
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_both_descriptions_of_a_model_agree_within_their_intervals(name: str, framework: str) -> None:
    """The operators of one run under autocast; the other says so, or has weights in half precision."""
    listed, condensed = step(name), step(name, f"training.framework={framework}")
    assert condensed.low_us <= listed.high_us and listed.low_us <= condensed.high_us
    autocast = step(name, f"training.framework={framework}", "training.master_weights=false")
    assert listed.low_us <= autocast.step_time_us <= listed.high_us


def test_a_small_model_waits_for_its_host_and_a_faster_host_helps() -> None:
    usual = step("gpt2", "training.framework=hf")
    slow = step("gpt2", "training.framework=hf", platform=("host.speed=0.5",))
    fast = step("gpt2", "training.framework=hf", platform=("host.speed=2",))
    assert fast.step_time_us < 0.7 * usual.step_time_us < 0.7 * 0.6 * slow.step_time_us
    assert step("gpt2", "training.framework=hf", "training.cuda_graphs=true").step_time_us < fast.step_time_us
