"""Published runs as their authors describe them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepsight.platform.load import load_platform
from stepsight.prediction.memory import fits
from stepsight.workload.files import load_workload, resolve

FILES = sorted((Path(__file__).parents[2] / "examples" / "published").glob("*.toml"))
RUNS = [path for path in FILES if "# platform:" in path.read_text()]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_published_run_is_read_and_fits(path: Path) -> None:
    stated = re.search(r"^# platform: (\S+)", path.read_text(), re.MULTILINE)
    assert stated
    spec = load_platform(stated[1]).spec
    workload = resolve(load_workload(path), spec.ranks, spec.gpu)
    assert workload.ranks == spec.ranks
    assert fits(workload.memory().peak_bytes, spec.gpu.usable_bytes)
