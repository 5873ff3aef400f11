"""The memory format of a convolution's results, as a GPU's library leaves them.

torch asks the libraries it was built with; one built without cuDNN makes every result contiguous, and all
that follows would be laid out as on no GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from stepsight.capture.recording.facts import Facts
from stepsight.program.aten.conv_backend import is_channels_last

_IMAGE_AND_WEIGHT = {"convolution": (0, 1), "convolution_backward": (1, 2)}


def as_on_gpu(name: str, args: Any, out: Any, facts: Facts) -> Any:
    """Results of a convolution on the GPU, channels_last where the image or the weight is."""
    places = _IMAGE_AND_WEIGHT.get(name)
    if places is None or len(args) <= max(places):
        return out
    image, weight = (args[place] for place in places)
    if not isinstance(image, FakeTensor) or image.fake_device.type != "cuda":
        return out
    if not any(is_channels_last(facts.tensor(t)) for t in (image, weight)):
        return out
    if isinstance(out, torch.Tensor):
        return _last(out)
    return tuple(_last(t) for t in out)


def _last(t: torch.Tensor | None) -> torch.Tensor | None:
    return t if t is None or t.dim() != 4 else t.to(memory_format=torch.channels_last)
