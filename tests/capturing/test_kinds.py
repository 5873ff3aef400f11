"""Diffusion, speech, detection, graph and recurrent models are captured, and every operator has a model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from stepsight.capturing.ranks import Capturing
from stepsight.capturing.request import FakeGpu, Request
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict_captured

pytest.importorskip("torch")
SCRIPT = Path(__file__).with_name("kinds.py")
NEEDS = {
    "unet": "diffusers", "dit": "diffusers", "whisper": "transformers", "retinanet": "torchvision",
    "ssd": "torchvision", "geometric": "torch_geometric", "graph": "torch", "recurrent": "torch",
}  # fmt: skip
MOST = 0.05
"""Of the step: time of one operator without a model."""


def test_every_kind_of_model_is_captured_and_its_operators_have_models() -> None:
    """One step that trains all the kinds whose libraries are installed."""
    kinds = [kind for kind, library in NEEDS.items() if find_spec(library)]
    request = Request(str(SCRIPT), kinds, FakeGpu("H100", (9, 0), 80 << 30, 132, 50 << 20), 1, 8)
    step = Capturing(request).step("kinds.py")
    assert not step.guessed
    made = predict_captured(step, load_platform("1xH100-SXM"))
    longest = max((op.time_us for op in made.coverage.without_model), default=0.0)
    assert longest <= MOST * made.step_time_us
    names = {op.name for op in step.job.programs[0].ops}
    assert {"aten::_cudnn_rnn", "aten::index_add_"} <= names
