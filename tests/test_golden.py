"""Step times of every example on two platforms: a silent shift of a prediction fails here.

``scripts/golden`` writes the file anew when a change is meant to move them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepsight.errors import StepsightError
from stepsight.prediction.predict import predict
from stepsight.workload.files import load_workload

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "data" / "golden_steps.json"
TOLERANCE = 0.02
LAPTOP_ONLY = ("dlrm_cpu",)
"""Examples for a calibrated CPU platform."""


def examples() -> Iterator[tuple[str, str]]:
    """Example and platform: nodes of eight, of an older and a newer GPU."""
    for path in sorted((ROOT / "examples").glob("*.toml")):
        if path.stem in LAPTOP_ONLY:
            continue
        nodes = -(-load_workload(path).ranks // 8)
        for gpu in ("A100-SXM4-80G", "H100-SXM-80G"):
            yield path.stem, f"8x{gpu}" if nodes == 1 else f"{nodes}x8x{gpu}"


def step_ms(name: str, platform: str) -> float:
    return predict(ROOT / "examples" / f"{name}.toml", platform).step_time_us / 1e3


@pytest.mark.parametrize(("name", "platform"), list(examples()), ids=[" on ".join(e) for e in examples()])
def test_the_step_time_of_an_example_is_as_it_was(name: str, platform: str) -> None:
    known = json.loads(FILE.read_text())
    key = f"{name} on {platform}"
    assert key in known, "run scripts/golden"
    try:
        now = step_ms(name, platform)
    except StepsightError as error:
        pytest.fail(str(error))
    assert now == pytest.approx(known[key], rel=TOLERANCE), "a prediction moved; see scripts/golden"
