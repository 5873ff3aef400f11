"""What a captured step tells the reader of its prediction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepsight.capturing.step import Samples
from tests.lab.score.capture.tiny import step


@pytest.mark.parametrize(("count", "words"), [(8192, "8,192 samples"), (2_500_000, "2,500,000 samples")])
def test_samples_read_off_the_input_are_written_out(count: int, words: str) -> None:
    counted = replace(step(), samples=Samples(count))
    assert any(note.startswith(f"{words} per step: ") for note in counted.all_notes())
